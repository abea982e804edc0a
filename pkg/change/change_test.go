package change_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/change"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func TestKeysAreFitForSubjects(t *testing.T) {
	long := strings.Repeat("é", 128)
	seen := map[string]change.Target{}
	for _, target := range []change.Target{
		{User: "ann"}, {User: "a.n>*"}, {User: long}, {Table: "t", Field: "f"}, {Table: "t.f", Field: "g"}, {Table: "t", Field: "f.g"}, {Table: long, Field: long},
	} {
		key := target.Key()
		if other, ok := seen[key]; ok || strings.ContainsAny(key, "*> \t") || strings.Contains(key, "..") {
			t.Errorf("key of %v is %s, that of %v too", target, key, other)
		}
		seen[key] = target
	}
}

func TestDecode(t *testing.T) {
	put, _, err := change.NewFieldPut("t", "f", "ann", []byte(`{"name":"<b>","size":9007199254740993}`))
	fatal.If(t, err)
	put.Base = new(string)
	message, err := put.Encode()
	fatal.If(t, err)
	want := *put
	got, err := change.Decode(message)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-sent +received):\n%s", err, diff)
	}

	for _, tc := range []struct{ name, body, want string }{
		{"nothing", ``, "bad not_a_change"},
		{"records", `[{"id":"1-1"}]`, "bad not_a_change"},
		{"no kind", `{"target":{"user":"ann"}}`, "bad unknown_kind"},
		{"another kind", `{"kind":"user.burnt","target":{"user":"ann"}}`, "bad unknown_kind"},
		{"a user's change of a field", `{"kind":"user.patched","target":{"table":"t","field":"f"},"body":{}}`, "bad bad_target"},
		{"a field's change of a user", `{"kind":"field.deleted","target":{"user":"ann"}}`, "bad bad_target"},
		{"both", `{"kind":"field.deleted","target":{"user":"ann","table":"t","field":"f"}}`, "bad bad_target"},
		{"half a field", `{"kind":"field.deleted","target":{"table":"t"}}`, "bad bad_target"},
		{"no patch", `{"kind":"user.patched","target":{"user":"ann"}}`, "bad bad_body"},
		{"a patch that is not an object", `{"kind":"user.patched","target":{"user":"ann"},"body":[]}`, "bad bad_body"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := change.Decode([]byte(tc.body)); describe(err) != tc.want {
				t.Errorf("got %v, want %s", describe(err), tc.want)
			}
		})
	}
}

func TestAudit(t *testing.T) {
	c, _, err := change.NewUserPatch(t.Context(), "ann", false, []byte(`{"sk":"x","name":"y","company":null}`), secrets())
	fatal.If(t, err)
	want := change.Audit{Seq: 5, At: c.At, By: "ann", Kind: change.UserPatched, TargetKind: "user", Key: "ann", Members: []string{"company", "name", "sk"}}
	expect.Equal(t, "result", want, c.Audit(5))
	d, err := change.NewFieldDelete("t/1", "f 2", "bob", 0)
	fatal.If(t, err)
	want = change.Audit{Seq: 6, At: d.At, By: "bob", Kind: change.FieldDeleted, TargetKind: "field", Key: "t%2F1/f%202", Members: []string{}}
	expect.Equal(t, "result", want, d.Audit(6))
}

// FuzzNames: every accepted name has its own key, which decodes to the name.
func FuzzNames(f *testing.F) {
	for _, seed := range []string{"t", "a.b", "*", ">", " ", "%2F", "é", "\x7f", "\xff", ""} {
		f.Add(seed, "f")
		f.Add("t", seed)
	}
	f.Fuzz(func(t *testing.T, table, field string) {
		c, err := change.NewFieldDelete(table, field, "ann", 0)
		if err != nil {
			return
		}
		message, err := c.Encode()
		fatal.If(t, err)
		back, err := change.Decode(message)
		if err != nil || back.Target != c.Target || back.Target.Key() != c.Target.Key() {
			t.Errorf("%q, %q came back as %+v, %v", table, field, back.Target, err)
		}
		if !json.Valid(message) || strings.Count(c.Target.Key(), ".") != 2 {
			t.Errorf("key %q", c.Target.Key())
		}
	})
}
