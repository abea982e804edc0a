package auth_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/pkg/auth"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
)

func tokenFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	writeFile(t, path, content)
	return path
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	fatal.If(t, os.WriteFile(path, []byte(content), 0o600))
}

func newAuth(t *testing.T, cfg auth.Config) *auth.Authenticator {
	t.Helper()
	a, err := auth.New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	fatal.If(t, err)
	return a
}

func TestAStaticTokenIsFoundByItsDigest(t *testing.T) {
	engine, expired, fast := auth.NewToken(), auth.NewToken(), auth.NewToken()
	lines := []auth.Entry{
		{Subject: "engine-a", SHA256: auth.Digest(engine), Scopes: []flow.Scope{flow.ScopeRecordsWrite}},
		{Subject: "engine-b", SHA256: auth.Digest(expired), Scopes: []flow.Scope{flow.ScopeRead}, Expires: time.Now().Add(-time.Second)},
		{Subject: "ops: \"all\" #1", SHA256: auth.Digest(fast), Scopes: flow.Scopes(), Expires: time.Now().Add(time.Hour), Rate: 12.5},
	}
	var content strings.Builder
	for _, e := range lines {
		content.WriteString(e.Line() + "\n")
	}
	rotated := auth.NewToken()
	content.WriteString(auth.Entry{Subject: "engine-a-2027", Source: "cluster \"a\"", SHA256: auth.Digest(rotated), Scopes: []flow.Scope{flow.ScopeRecordsWrite}}.Line() + "\n")
	unquoted := auth.NewToken()
	content.WriteString("- subject: engine-c\n  sha256: " + auth.Digest(unquoted) + "\n  scopes:\n  - read\n  expires: 2999-01-31T12:00:00+02:00\n")
	narrow := auth.NewToken()
	content.WriteString(auth.Entry{Subject: "acme", SHA256: auth.Digest(narrow), Scopes: []flow.Scope{flow.ScopeRead}, Tables: []string{"orders", "a \"b\": c"}, Tenants: []string{"acme", "<default>"}}.Line() + "\n")
	oneLine := auth.NewToken()
	content.WriteString("- {subject: engine-d, sha256: " + auth.Digest(oneLine) + ", scopes: [records:write, read]}\n...\n")
	a := newAuth(t, auth.Config{Tokens: tokenFile(t, content.String())})

	if !a.Configured("engine-b") || a.Configured("engine-z") {
		t.Errorf("configured are engine-b: %t, engine-z: %t; want the first alone", a.Configured("engine-b"), a.Configured("engine-z"))
	}
	engineA := flow.Caller{Subject: "engine-a", Source: "engine-a", Scopes: []flow.Scope{flow.ScopeRecordsWrite}}
	tests := []struct {
		name   string
		header string
		want   flow.Caller
		err    error
	}{
		{"bare", engine, engineA, nil},
		{"after Bearer", "Bearer " + engine, engineA, nil},
		{"after bearer in small letters and more spaces", " bearer \t" + engine + " ", engineA, nil},
		{"with a rate and an expiry to come", fast, flow.Caller{Subject: "ops: \"all\" #1", Source: "ops: \"all\" #1", Scopes: flow.Scopes(), Rate: 12.5}, nil},
		{"written by hand over several lines", unquoted, flow.Caller{Subject: "engine-c", Source: "engine-c", Scopes: []flow.Scope{flow.ScopeRead}}, nil},
		{"written by hand in one line, without quotes", oneLine, flow.Caller{Subject: "engine-d", Source: "engine-d", Scopes: []flow.Scope{flow.ScopeRecordsWrite, flow.ScopeRead}}, nil},
		{"with a source of its own", rotated, flow.Caller{Subject: "engine-a-2027", Source: "cluster \"a\"", Scopes: []flow.Scope{flow.ScopeRecordsWrite}}, nil},
		{"for tables and tenants", narrow, flow.Caller{Subject: "acme", Source: "acme", Scopes: []flow.Scope{flow.ScopeRead}, Tables: []string{"orders", "a \"b\": c"}, Tenants: []string{"acme", "<default>"}}, nil},
		{"no header", "", flow.Caller{}, flow.ErrTokenMissing},
		{"only the scheme", "Bearer", flow.Caller{}, flow.ErrTokenMissing},
		{"only the scheme and a space", "Bearer ", flow.Caller{}, flow.ErrTokenMissing},
		{"unknown token", auth.NewToken(), flow.Caller{}, flow.ErrTokenInvalid},
		{"expired", expired, flow.Caller{Subject: "engine-b"}, flow.ErrTokenInvalid},
		{"the digest instead of the token", auth.Digest(engine), flow.Caller{}, flow.ErrTokenInvalid},
		{"another scheme", "Basic " + engine, flow.Caller{}, flow.ErrTokenInvalid},
		{"the scheme glued to the token", "Bearer" + engine, flow.Caller{}, flow.ErrTokenInvalid},
		{"the scheme twice", "Bearer Bearer " + engine, flow.Caller{}, flow.ErrTokenInvalid},
		{"far too long", strings.Repeat("x", 1<<20), flow.Caller{}, flow.ErrTokenInvalid},
		{"looks like a JWT, but none are accepted", "a.b.c", flow.Caller{}, flow.ErrTokenInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := a.Authenticate(tt.header)
			expect.Not(t, !errors.Is(err, tt.err) || (tt.err == nil) != (err == nil), "error: got %v, want %v", err, tt.err)
			expect.Equal(t, "identity", tt.want, got)
		})
	}
}

func TestATokenFileIsRefusedWithoutQuotingIt(t *testing.T) {
	digest := auth.Digest("swordfish-secret")
	tests := []struct {
		name    string
		content string
		want    string
	}{
		{"empty", "", "the file is empty"},
		{"only a comment", "# nobody\n", "the file is empty"},
		{"not YAML", "- {subject: a, sha256: swordfish-secret", "not a YAML list of"},
		{"not a list", "subject: swordfish-secret", "not a YAML list of"},
		{"an unknown member", "- {subject: a, token: swordfish-secret}", "not a YAML list of"},
		{"a token instead of its digest", "- {subject: a, sha256: swordfish-secret, scopes: [read]}", "sha256 is not 64 hexadecimal digits"},
		{"no subject", "- {sha256: " + digest + ", scopes: [read]}", "subject is not 1 to 256 bytes"},
		{"no table at all", "- {subject: a, sha256: " + digest + ", scopes: [read], tables: []}", "tables is empty: leave it out"},
		{"a tenant without a name", "- {subject: a, sha256: " + digest + ", scopes: [read], tenants: [b, \"\"]}", "tenants: a name is not 1 to 256 bytes"},
		{"a source that is too long", "- {subject: a, source: " + strings.Repeat("s", 257) + ", sha256: " + digest + ", scopes: [read]}", "source is not 1 to 256 bytes"},
		{"a source with a line break", "- {subject: a, source: \"s\\nt\", sha256: " + digest + ", scopes: [read]}", "source is not 1 to 256 bytes"},
		{"a subject with a line break", "- {subject: \"a\\nb\", sha256: " + digest + ", scopes: [read]}", "subject is not 1 to 256 bytes"},
		{"a subject with a space around it", "- {subject: \" a\", sha256: " + digest + ", scopes: [read]}", "subject is not 1 to 256 bytes"},
		{"no scopes", "- {subject: a, sha256: " + digest + "}", "it has no scopes"},
		{"an unknown scope", "- {subject: a, sha256: " + digest + ", scopes: [swordfish-secret]}", "a scope is not one of"},
		{"a negative rate", "- {subject: a, sha256: " + digest + ", scopes: [read], rate: -1}", "rate is negative"},
		{"a rate that is not a number", "- {subject: a, sha256: " + digest + ", scopes: [read], rate: .nan}", "rate is negative"},
		{"an invalid expiry", "- {subject: a, sha256: " + digest + ", scopes: [read], expires: swordfish-secret}", "expires is not a time"},
		{"an expiry without a zone", "- {subject: a, sha256: " + digest + ", scopes: [read], expires: 2027-01-31 12:00:00}", "expires is not a time"},
		{"the same token twice", strings.Repeat("- {subject: a, sha256: "+digest+", scopes: [read]}\n", 2), "token 2 of the file: its sha256 is repeated"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := auth.New(auth.Config{Tokens: tokenFile(t, tt.content)}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			expect.Not(t, err == nil || !strings.Contains(err.Error(), tt.want), "got %v, want an error with %q", err, tt.want)
			expect.Not(t, err != nil && strings.Contains(err.Error(), "swordfish"), "the error quotes the file: %v", err)
		})
	}
}

func TestAHalfWrittenTokenFileIsNeverInForce(t *testing.T) {
	token := auth.NewToken()
	entry := auth.Entry{Subject: "acme", SHA256: auth.Digest(token), Scopes: []flow.Scope{flow.ScopeRecordsWrite}, Tenants: []string{"acme"}}
	lines := "- subject: acme\n  sha256: " + entry.SHA256 + "\n  scopes: [records:write]\n  tenants: [acme]\n...\n"
	for name, whole := range map[string]string{"several lines": lines, "one line": entry.Line() + "\n", "braces over lines": strings.ReplaceAll(entry.Line(), ", ", ",\n  ")} {
		t.Run(name, func(t *testing.T) {
			for end := range len(whole) + 1 {
				a, err := auth.New(auth.Config{Tokens: tokenFile(t, whole[:end])}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
				if err != nil {
					fatal.When(t, end == len(whole), "the whole file is refused: %v", err)
					continue
				}
				who, err := a.Authenticate("Bearer " + token)
				fatal.When(t, err != nil || !slices.Equal(who.Tenants, entry.Tenants), "cut after %d of %d bytes: %+v, %v, want nothing or the tenants", end, len(whole), who, err)
			}
		})
	}
}

func TestTheTokenFileIsFollowed(t *testing.T) {
	first, second := auth.NewToken(), auth.NewToken()
	line := func(token string) string {
		return auth.Entry{Subject: "a", SHA256: auth.Digest(token), Scopes: []flow.Scope{flow.ScopeRead}}.Line()
	}
	path := tokenFile(t, line(first))
	var logged bytes.Buffer
	reg := prometheus.NewRegistry()
	a, err := auth.New(auth.Config{Tokens: path}, slog.New(slog.NewTextHandler(&logged, nil)), reg)
	fatal.If(t, err)
	stale := func() float64 {
		return metricValue(t, reg, "sluice_auth_stale", "tokens")
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	steps := []struct {
		name   string
		do     func()
		want   []bool // whether first and second are accepted
		stale  float64
		errors int // errors logged so far
	}{
		{"an empty list", func() { writeFile(t, path, "[]") }, []bool{false, false}, 0, 0},
		{"one token", func() { writeFile(t, path, line(first)) }, []bool{true, false}, 0, 0},
		{"rewritten", func() { writeFile(t, path, line(second)) }, []bool{false, true}, 0, 0},
		{"broken", func() { writeFile(t, path, "- {subject: ") }, []bool{false, true}, 1, 1},
		{"still broken", func() {}, []bool{false, true}, 1, 1},
		{"gone", func() { os.Remove(path) }, []bool{false, true}, 1, 2},
		{"still gone", func() {}, []bool{false, true}, 1, 2},
		{"replaced by a rename", func() {
			writeFile(t, path+".new", line(first))
			fatal.If(t, os.Rename(path+".new", path))
		}, []bool{true, false}, 0, 2},
	}
	for _, step := range steps {
		step.do()
		a.Follow()
		for i, token := range []string{first, second} {
			if _, err := a.Authenticate(token); (err == nil) != step.want[i] {
				t.Errorf("%s: token %d: got %v, want let in: %t", step.name, i+1, err, step.want[i])
			}
		}
		if got := stale(); got != step.stale {
			t.Errorf("%s: sluice_auth_stale is %g, want %g", step.name, got, step.stale)
		}
		if got := strings.Count(logged.String(), "level=ERROR"); got != step.errors {
			t.Errorf("%s: %d complaints logged, want %d:\n%s", step.name, got, step.errors, logged.String())
		}
	}
}

// TestATokenIsAcceptedFromItsFirstRequestOn, also just after another check of the file.
func TestATokenIsAcceptedFromItsFirstRequestOn(t *testing.T) {
	path := tokenFile(t, "[]")
	a := newAuth(t, auth.Config{Tokens: path})
	var lines string
	for i := range 20 {
		token := auth.NewToken()
		_, err := a.Authenticate(token)
		expect.Not(t, err == nil, "token %d is accepted before it is in the file", i+1)
		lines += auth.Entry{Subject: "a", SHA256: auth.Digest(token), Scopes: flow.Scopes()}.Line() + "\n"
		writeFile(t, path, lines)
		_, err = a.Authenticate(token)
		expect.NoError(t, err)
	}
}

// metricValue reads one gauge by its label's value.
func metricValue(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	fatal.If(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s with label %s", name, label)
	return 0
}

func TestTokensAreNeverTheSame(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		token := auth.NewToken()
		if len(token) != len("sluice_")+43 || seen[token] {
			t.Fatalf("token of %d bytes, seen before: %t", len(token), seen[token])
		}
		seen[token] = true
	}
}

// FuzzAuthenticate sends any header: only the token itself is accepted, and no error quotes the
// header.
func FuzzAuthenticate(f *testing.F) {
	const token = "sluice_fuzz-token-that-nobody-guesses"
	line := auth.Entry{Subject: "a", SHA256: auth.Digest(token), Scopes: []flow.Scope{flow.ScopeRead}}.Line()
	path := filepath.Join(f.TempDir(), "tokens.yaml")
	fatal.If(f, os.WriteFile(path, []byte(line), 0o600))
	secret := filepath.Join(f.TempDir(), "secret")
	fatal.If(f, os.WriteFile(secret, bytes.Repeat([]byte("k"), 32), 0o600))
	cfg := auth.Config{Tokens: path, JWT: auth.JWT{SecretFile: secret}}
	a, err := auth.New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	fatal.If(f, err)
	for _, seed := range []string{
		"", "Bearer", "Bearer ", token, "Bearer " + token, "bearer\t" + token, "Basic YTpi", "a.b.c", "Bearer a.b.c",
		"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.AAAA", "\x00", "Bearer \xff\xfe", "..",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		identity, err := a.Authenticate(header)
		if err == nil {
			if !strings.HasSuffix(strings.Trim(header, " \t"), token) || identity.Subject != "a" {
				t.Errorf("%q was let in as %q", header, identity.Subject)
			}
			return
		}
		expect.Not(t, !errors.Is(err, flow.ErrTokenMissing) && !errors.Is(err, flow.ErrTokenInvalid), "%q: unexpected error %v", header, err)
		expect.Not(t, len(header) > 12 && strings.Contains(err.Error(), header), "the error quotes the header: %v", err)
	})
}

func TestRunFollowsTheTokenFileUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token := auth.NewToken()
		path := tokenFile(t, "[]")
		a := newAuth(t, auth.Config{Tokens: path})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		writeFile(t, path, auth.Entry{Subject: "a", SHA256: auth.Digest(token), Scopes: flow.Scopes()}.Line())
		time.Sleep(1500 * time.Millisecond)
		if _, err := a.Authenticate(token); err != nil {
			t.Errorf("a second after the file changed: %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: got %v, want nil", err)
		}
	})
}

func TestTokensInForceAreListedWithoutTheirDigests(t *testing.T) {
	entries := []auth.Entry{
		{Subject: "a", Source: "cluster", SHA256: auth.Digest("one"), Scopes: []flow.Scope{flow.ScopeRead}, Tenants: []string{"t"},
			Exclude: []flow.Exclusion{{ValueType: "VARIABLE", Variable: `tmp_"*`}, {Process: "internal-*", Intent: "ELEMENT_*"}}},
		{Subject: "gone", SHA256: auth.Digest("two"), Scopes: flow.Scopes(), Expires: time.Now().Add(-time.Hour)},
	}
	a := newAuth(t, auth.Config{Tokens: tokenFile(t, entries[0].Line()+"\n"+entries[1].Line())})
	want := []auth.Entry{{Subject: "a", Source: "cluster", Scopes: []flow.Scope{flow.ScopeRead}, Tenants: []string{"t"}, Exclude: entries[0].Exclude}}
	expect.Equal(t, "tokens", want, a.Tokens())
}
