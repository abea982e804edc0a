package change_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/change"
)

func TestNewFieldPut(t *testing.T) {
	for _, tc := range []struct{ name, body, want string }{
		{"an empty field has its names", `{}`, `{"id":"f/1","tableId":"t 1"}`},
		{"null is no other name", `{"id":null,"tableId":null,"style":null}`, `{"id":"f/1","style":null,"tableId":"t 1"}`},
		{"all members", `{"id":"f/1","name":"n","originalName":"o","biType":"b","originalBiType":"c","biTypeFmt":"date:YYYY","originalType":"VARCHAR","calculated":true,"checked":false,"isMeasure":true,"colIndex":1,"userColIdx":2,"size":9007199254740993,"style":{"w":1.50},"tableId":"t 1","tableName":"T","createdAt":"2024-05-06T07:08:09.123Z","updatedAt":"2024-05-06T07:08:09Z"}`,
			`{"biType":"b","biTypeFmt":"date:YYYY","calculated":true,"checked":false,"colIndex":1,"createdAt":"2024-05-06T07:08:09.123Z","id":"f/1","isMeasure":true,"name":"n","originalBiType":"c","originalName":"o","originalType":"VARCHAR","size":9007199254740993,"style":{"w":1.50},"tableId":"t 1","tableName":"T","updatedAt":"2024-05-06T07:08:09Z","userColIdx":2}`},
		{"unknown members", `{"x":[1.0]}`, `{"id":"f/1","tableId":"t 1","x":[1.0]}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, _, err := change.NewFieldPut("t 1", "f/1", "ann", []byte(tc.body))
			if err != nil || string(c.Body) != tc.want {
				t.Fatalf("got %+v, %v; want %s", c, err, tc.want)
			}
			if c.Kind != change.FieldPut || c.By != "ann" || c.Expected != nil || c.Empty() {
				t.Errorf("change is %+v", c)
			}
		})
	}
}

func TestNewFieldPutRefuses(t *testing.T) {
	for _, tc := range []struct{ name, table, field, body, want string }{
		{"another id", "t", "f", `{"id":"g"}`, "conflict"},
		{"another table", "t", "f", `{"tableId":"u"}`, "conflict"},
		{"wrong types", "t", "f", `{"size":"1","style":[],"checked":0}`, "#/checked wrong_type, #/size wrong_type, #/style wrong_type"},
		{"a date that is none", "t", "f", `{"createdAt":"yesterday"}`, "#/createdAt not_a_date_time"},
		{"an array", "t", "f", `[{}]`, "# not_an_object"},
		{"no JSON", "t", "f", ``, "syntax"},
		{"an empty table", "", "f", `{}`, "target tableId"},
		{"an empty field", "t", "", `{}`, "target fieldId"},
		{"a long field", "t", strings.Repeat("f", 257), `{}`, "target fieldId"},
		{"control characters", "t\x00", "f", `{}`, "target tableId"},
		{"other control characters", "t", "f\u0085", `{}`, "target fieldId"},
		{"bad UTF-8", "t", "f\xc3", `{}`, "target fieldId"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, _, err := change.NewFieldPut(tc.table, tc.field, "ann", []byte(tc.body))
			if got := describe(err); got != tc.want || c != nil {
				t.Errorf("got %s and %v, want %s", got, c, tc.want)
			}
		})
	}
}

func TestNewFieldDelete(t *testing.T) {
	c, err := change.NewFieldDelete("t", "f", "ann", 7)
	if err != nil || c.Kind != change.FieldDeleted || *c.Expected != 7 || c.Body != nil || c.Empty() {
		t.Errorf("got %+v, %v", c, err)
	}
	if _, err := change.NewFieldDelete("t", "f\n", "ann", 0); describe(err) != "target fieldId" {
		t.Errorf("got %v, want a *TargetError", err)
	}
}

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
	if err != nil {
		t.Fatal(err)
	}
	message, err := put.Encode()
	if err != nil {
		t.Fatal(err)
	}
	want := *put
	want.ID = ""
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
		{"a patch that is no object", `{"kind":"user.patched","target":{"user":"ann"},"body":[]}`, "bad bad_body"},
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
	if err != nil {
		t.Fatal(err)
	}
	want := change.Audit{Seq: 5, At: c.At, By: "ann", Kind: change.UserPatched, TargetKind: "user", Key: "ann", Members: []string{"company", "name", "sk"}}
	if diff := cmp.Diff(want, c.Audit(5)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	d, err := change.NewFieldDelete("t/1", "f 2", "bob", 0)
	if err != nil {
		t.Fatal(err)
	}
	want = change.Audit{Seq: 6, At: d.At, By: "bob", Kind: change.FieldDeleted, TargetKind: "field", Key: "t%2F1/f%202", Members: []string{}}
	if diff := cmp.Diff(want, d.Audit(6)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// FuzzNames: whatever is let through has a key of its own that says it again.
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
		if err != nil {
			t.Fatal(err)
		}
		back, err := change.Decode(message)
		if err != nil || back.Target != c.Target || back.Target.Key() != c.Target.Key() {
			t.Errorf("%q, %q came back as %+v, %v", table, field, back.Target, err)
		}
		if !json.Valid(message) || strings.Count(c.Target.Key(), ".") != 2 {
			t.Errorf("key %q", c.Target.Key())
		}
	})
}
