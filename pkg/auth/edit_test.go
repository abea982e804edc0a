package auth_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/pkg/auth"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
)

func TestATokenFileIsEditedInPlace(t *testing.T) {
	digest := func(c string) string { return strings.Repeat(c, 64) }
	a := auth.Entry{Subject: "a", SHA256: digest("a"), Scopes: []flow.Scope{flow.ScopeRecordsWrite}}
	b := auth.Entry{Subject: "b", SHA256: digest("b"), Scopes: []flow.Scope{flow.ScopeRead}}
	lines := "# ours\n" + a.Line() + " # the old cluster\n\n# theirs\n- subject: b\n  sha256: " + b.SHA256 + "\n  scopes: [read]\n# last\n...\n"
	never := errors.New("never")
	for name, c := range map[string]struct {
		before string
		change func([]auth.Entry) ([]auth.Entry, error)
		want   string
		err    error
	}{
		"into an empty file":       {"", func(all []auth.Entry) ([]auth.Entry, error) { return append(all, a), nil }, a.Line() + "\n", nil},
		"into an empty list":       {"# ours\n[]\n", func(all []auth.Entry) ([]auth.Entry, error) { return append(all, a, b), nil }, "# ours\n" + a.Line() + "\n" + b.Line() + "\n", nil},
		"the first is removed":     {lines, func(all []auth.Entry) ([]auth.Entry, error) { return all[1:], nil }, "# ours\n\n# theirs\n- subject: b\n  sha256: " + b.SHA256 + "\n  scopes: [read]\n# last\n...\n", nil},
		"all are removed":          {a.Line() + "\n", func([]auth.Entry) ([]auth.Entry, error) { return nil, nil }, "[]\n", nil},
		"one is added":             {a.Line() + "\n...\n", func(all []auth.Entry) ([]auth.Entry, error) { return append(all, b), nil }, a.Line() + "\n" + b.Line() + "\n...\n", nil},
		"nothing when it is wrong": {lines, func([]auth.Entry) ([]auth.Entry, error) { return nil, never }, lines, never},
		"one is changed": {lines, func(all []auth.Entry) ([]auth.Entry, error) {
			all[0].Expires = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
			return all, nil
		}, strings.Replace(lines, a.Line()+" # the old cluster", strings.TrimSuffix(a.Line(), "}")+`, expires: "2030-01-01T00:00:00Z"}`, 1), nil},
	} {
		t.Run(name, func(t *testing.T) {
			file := tokenFile(t, c.before)
			fatal.If(t, os.Chmod(file, 0o640))
			if err := auth.Edit(file, c.change); !errors.Is(err, c.err) {
				t.Fatalf("got %v, want %v", err, c.err)
			}
			got, err := os.ReadFile(file)
			fatal.If(t, err)
			expect.Equal(t, "the file", c.want, string(got))
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
				t.Errorf("its mode is %v, %v", info.Mode(), err)
			}
			if _, err := os.Stat(file + ".new"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("what was written beside it is left: %v", err)
			}
		})
	}
}

func TestATokenFileThatAProgramCannotEditStaysAsItIs(t *testing.T) {
	digest := strings.Repeat("a", 64)
	for name, content := range map[string]string{
		"broken":       "- {subject: a",
		"in brackets":  "[{subject: a, sha256: " + digest + ", scopes: [read]}]\n",
		"dash alone":   "-\n  subject: a\n  sha256: " + digest + "\n  scopes: [read]\n...\n",
		"half written": "- subject: a\n  sha256: " + digest + "\n  scopes: [read]\n",
	} {
		t.Run(name, func(t *testing.T) {
			file := tokenFile(t, content)
			if err := auth.Edit(file, func([]auth.Entry) ([]auth.Entry, error) { return nil, nil }); err == nil {
				t.Error("it was edited")
			}
			if got, err := os.ReadFile(file); err != nil || string(got) != content {
				t.Errorf("it is %q now, %v", got, err)
			}
		})
	}
}

func TestEditorsOfATokenFileTakeTurns(t *testing.T) {
	file := tokenFile(t, "[]\n")
	fatal.If(t, os.WriteFile(file+".new", []byte("of one that was killed"), 0o600))
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			one := auth.Entry{Subject: fmt.Sprint(i), SHA256: fmt.Sprintf("%064d", i), Scopes: []flow.Scope{flow.ScopeRead}}
			expect.NoError(t, auth.Edit(file, func(all []auth.Entry) ([]auth.Entry, error) { return append(all, one), nil }))
		})
	}
	all.Wait()
	if got, err := auth.Read(file); err != nil || len(got) != 20 {
		t.Errorf("%d tokens, %v, want 20", len(got), err)
	}
}
