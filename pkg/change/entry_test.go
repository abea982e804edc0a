package change_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/change"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// step is one change to apply; those without a seq get the next one.
type step struct {
	body  string // of a user's patch
	admin bool
	want  string // document after it
}

func TestApplyToAUser(t *testing.T) {
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"patches of different members both survive", []step{
			{body: `{"name":"n","tableFieldsSetting":{"a":1}}`, want: `{"name":"n","tableFieldsSetting":{"a":1}}`},
			{body: `{"company":"c","tableFieldsSetting":{"b":2.0}}`, want: `{"company":"c","name":"n","tableFieldsSetting":{"a":1,"b":2.0}}`},
			{body: `{"name":null}`, want: `{"company":"c","tableFieldsSetting":{"a":1,"b":2.0}}`},
		}},
		{"only an admin changes authority", []step{
			{admin: true, body: `{"status":true,"type":2,"grant":{"edition":"free"},"privileges":[1]}`, want: `{"grant":{"edition":"free"},"privileges":[1],"status":true,"type":2}`},
			{body: `{"status":false,"type":null,"grant":null,"privileges":[1,2],"name":"n"}`, want: `{"grant":{"edition":"free"},"name":"n","privileges":[1],"status":true,"type":2}`},
		}},
		{"projects keep the authority of the same id", []step{
			{admin: true, body: `{"projects":[{"id":"a","name":"A","license":{"version":"1"},"grant":{"userCount":3}},{"id":"b","license":{"version":"2"}},{"name":"no id","license":{}}]}`,
				want: `{"projects":[{"grant":{"userCount":3},"id":"a","license":{"version":"1"},"name":"A"},{"id":"b","license":{"version":"2"}},{"license":{},"name":"no id"}]}`},
			{body: `{"name":"n"}`, // without projects: not even those without an id lose theirs
				want: `{"name":"n","projects":[{"grant":{"userCount":3},"id":"a","license":{"version":"1"},"name":"A"},{"id":"b","license":{"version":"2"}},{"license":{},"name":"no id"}]}`},
			{body: `{"projects":[{"id":"b","name":"B","license":{"version":"9"}},{"id":"a"},{"id":"a","name":"again"},{"id":"c","grant":{}},{}]}`,
				want: `{"name":"n","projects":[{"id":"b","license":{"version":"2"},"name":"B"},{"grant":{"userCount":3},"id":"a","license":{"version":"1"}},{"id":"a","name":"again"},{"id":"c"},{}]}`},
			{admin: true, body: `{"projects":[{"id":"a"}]}`, want: `{"name":"n","projects":[{"id":"a"}]}`},
			{body: `{"projects":null}`, want: `{"name":"n"}`},
		}},
		{"masks within an array keep the stored values", []step{
			{body: `{"projects":[{"id":"a","user":{"ak":"1","sk":null}},{"id":"b","user":{"sk":null}}]}`,
				want: `{"projects":[{"id":"a","user":{"ak":"1","sk":null}},{"id":"b","user":{"sk":null}}]}`},
			{body: `{"projects":[{"id":"b","user":{"sk":"****","password":"****"}},{"id":"x","user":{"sk":"****"}},{"user":{"sk":""}}]}`,
				want: `{"projects":[{"id":"b","user":{"sk":null}},{"id":"x","user":{}},{"user":{}}]}`},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var entry change.Entry
			for i, s := range tc.steps {
				c, _, err := change.NewUserPatch(t.Context(), "ann", s.admin, []byte(s.body), secrets())
				fatal.If(t, err)
				entry = mustApply(t, entry, *c, uint64(10*(i+1)))
				if string(entry.Doc) != s.want {
					t.Errorf("after %s\ngot  %s\nwant %s", s.body, entry.Doc, s.want)
				}
			}
		})
	}
}

// TestApplyTrustsNoMessage: a change without Admin grants no authority, whatever its members; of stored projects with
// the same id the first counts.
func TestApplyTrustsNoMessage(t *testing.T) {
	entry := change.Entry{Place: change.Place{Seq: 1}, Doc: json.RawMessage(`{"status":true,"projects":[{"id":"a","license":{"version":"1"}},{"id":"a","license":{"version":"2"}}]}`)}
	c := change.Change{
		Kind: change.UserPatched, Target: change.Target{User: "ann"},
		Body: json.RawMessage(`{"status":false,"type":9,"projects":[{"id":"a","grant":{}},{"id":"b","license":{}}]}`),
	}
	got := mustApply(t, entry, c, 2)
	if want := `{"projects":[{"id":"a","license":{"version":"1"}},{"id":"b"}],"status":true}`; string(got.Doc) != want {
		t.Errorf("got  %s\nwant %s", got.Doc, want)
	}
}

// TestReadingAndSendingBackKeepsSecrets: a client that sends back the user it read changes nothing.
func TestReadingAndSendingBackKeepsSecrets(t *testing.T) {
	body := `{"name":"n","ak":"AK1","sk":"x","password":"p","projects":[{"id":"a","license":{"version":"1"},"user":{"sk":"y","deep":[{"id":1,"password":"q"},{"id":"z","password":"r"}]}}]}`
	c, _, err := change.NewUserPatch(t.Context(), "ann", true, []byte(body), secrets())
	fatal.If(t, err)
	entry := mustApply(t, change.Entry{}, *c, 1)
	shown, err := entry.User("ann")
	fatal.If(t, err)
	want := `{"ak":"AK1","id":"ann","name":"n","password":"****","projects":[{"id":"a","license":{"version":"1"},"user":{"deep":[{"id":1,"password":"****"},{"id":"z","password":"****"}],"sk":"****"}}],"sk":"****"}`
	fatal.When(t, string(shown) != want, "shown %s\nwant  %s", shown, want)
	for _, admin := range []bool{true, false} {
		back, _, err := change.NewUserPatch(t.Context(), "ann", admin, shown, secrets())
		fatal.If(t, err)
		got := mustApply(t, entry, *back, 2)
		// An element whose id is not a text cannot be matched: its mask is removed.
		var stored map[string]any
		fatal.If(t, json.Unmarshal(entry.Doc, &stored))
		deep := stored["projects"].([]any)[0].(map[string]any)["user"].(map[string]any)["deep"].([]any)[0].(map[string]any)
		delete(deep, "password")
		var kept map[string]any
		fatal.If(t, json.Unmarshal(got.Doc, &kept))
		expect.Equal(t, fmt.Sprintf("admin %v (-stored +after)", admin), stored, kept)
	}
}

func TestApplyToAField(t *testing.T) {
	put := func(body string) change.Change {
		c, _, err := change.NewFieldPut("t", "f", "ann", []byte(body))
		fatal.If(t, err)
		return *c
	}
	remove := func(by string) change.Change {
		c, err := change.NewFieldDelete("t", "f", by, 0)
		fatal.If(t, err)
		return *c
	}
	var entry change.Entry
	if _, ok := entry.DatasetField(); ok {
		t.Error("a field that was never put is there")
	}

	first := remove("bob")
	entry = mustApply(t, entry, first, 3)
	want := change.Entry{Target: first.Target, Deleted: true, DeletedAt: first.At, DeletedBy: "bob", UpdatedAt: first.At, UpdatedBy: "bob", ID: first.ID, Place: change.Place{Seq: 3}}
	expect.Equal(t, "deleted before it was put", want, entry)

	entry = mustApply(t, entry, remove("carl"), 4)
	want.Seq = 4
	expect.Equal(t, "deleted again", want, entry)
	if _, ok := entry.DatasetField(); ok {
		t.Error("a deleted field is there")
	}

	revived := put(`{"name":"n"}`)
	entry = mustApply(t, entry, revived, 5)
	want = change.Entry{Target: first.Target, Doc: revived.Body, UpdatedAt: revived.At, UpdatedBy: "ann", ID: revived.ID, Place: change.Place{Seq: 5}}
	expect.Equal(t, "revived", want, entry)
	if doc, ok := entry.DatasetField(); !ok || string(doc) != `{"id":"f","name":"n","tableId":"t"}` {
		t.Errorf("field is %s, %v", doc, ok)
	}

	last := remove("dora")
	entry = mustApply(t, entry, last, 6)
	expect.Not(t, !entry.Deleted || entry.DeletedBy != "dora" || len(entry.Doc) > 0, "deleted after it was revived: %+v", entry)
}

// TestApplyIsIdempotent: replaying any part of a history in order changes nothing.
func TestApplyIsIdempotent(t *testing.T) {
	var history []change.Change
	for _, body := range []string{`{"name":"a"}`, `{"name":null,"remarks":"r"}`, `{"name":"b"}`, `{"remarks":null}`, `{}`} {
		c, _, err := change.NewUserPatch(t.Context(), "ann", false, []byte(body), secrets())
		fatal.If(t, err)
		history = append(history, *c)
	}
	var whole change.Entry
	for i, c := range history {
		whole = mustApply(t, whole, c, uint64(i+1))
	}
	for from := range history {
		again := whole
		for i, c := range history[from:] {
			next, applied, err := change.Apply(again, c, change.Place{Seq: uint64(from + i + 1)})
			expect.Not(t, applied || err != nil, "replay of %d: applied %v, %v", from+i+1, applied, err)
			again = next
		}
		expect.Equal(t, fmt.Sprintf("replayed from %d (-before +after)", from+1), whole, again)
	}
	expect.Not(t, whole.Seq != 5 || string(whole.Doc) != `{"name":"b"}`, "entry is %+v", whole)
}

func TestApplyRefuses(t *testing.T) {
	patch := func(body string) change.Change {
		return change.Change{Kind: change.UserPatched, Target: change.Target{User: "ann"}, At: time.Now(), Body: json.RawMessage(body)}
	}
	half := strings.Repeat("x", change.MaxBody/2)
	big := change.Entry{Doc: json.RawMessage(`{"a":"` + half + `"}`), Place: change.Place{Seq: 1}}
	for _, tc := range []struct {
		name  string
		entry change.Entry
		c     change.Change
		want  string
	}{
		{"a document that would grow too large", big, patch(`{"b":"` + half + `"}`), "bad document_too_large"},
		{"a body that is not an object", change.Entry{}, patch(`3`), "bad bad_body"},
		{"no kind", change.Entry{}, change.Change{}, "bad unknown_kind"},
		{"a damaged entry", change.Entry{Doc: json.RawMessage(`[]`)}, patch(`{}`), "patch user: the stored document is not an object"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, applied, err := change.Apply(tc.entry, tc.c, change.Place{Seq: 9})
			if describe(err) != tc.want || applied {
				t.Errorf("got %v, applied %v; want %s", describe(err), applied, tc.want)
			}
			if diff := cmp.Diff(tc.entry, got); diff != "" {
				t.Errorf("the entry changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestAUserWithoutEntryHasAnID(t *testing.T) {
	shown, err := change.Entry{}.User("ann")
	expect.Not(t, err != nil || string(shown) != `{"id":"ann"}`, "got %s, %v", shown, err)
	expect.Equal(t, "ETag", `"0"`, (change.Entry{}).ETag())
}

// TestAConditionalChangeIsIgnoredOnAnotherState: its outcome stays in the entry for a while.
func TestAConditionalChangeIsIgnoredOnAnotherState(t *testing.T) {
	put := func(id string, base ...string) change.Change {
		c := change.Change{
			Kind: change.FieldPut, Target: change.Target{Table: "t", Field: "f"}, By: "ann", ID: id,
			Body: json.RawMessage(`{"name":"` + id + `"}`),
		}
		if len(base) > 0 {
			c.Base = &base[0]
		}
		return c
	}
	var e change.Entry
	for i, tt := range []struct {
		c    change.Change
		want string // that made the state
	}{
		{put("never", "gone"), ""},
		{put("first", ""), "first"},
		{put("second", ""), "first"},
		{put("third", "first"), "third"},
		{put("third", "first"), "third"}, // the lane was set back while it was sent
		{put("fourth"), "fourth"},
		{put("third", "first"), "fourth"},
		{put("fourth"), "fourth"},
		{put("fifth", "fourth"), "fifth"},
	} {
		next, applied, err := change.Apply(e, tt.c, change.Place{Incarnation: 1, Seq: uint64(i + 1)})
		fatal.When(t, err != nil || !applied || next.ID != tt.want || next.Seq != uint64(i+1), "change %d: %+v, applied %v, %v; want the state of %q", i, next, applied, err, tt.want)
		doc, there := next.DatasetField()
		if want := `{"name":"` + tt.want + `"}`; there != (tt.want != "") || there && string(doc) != want {
			t.Errorf("change %d: %s, %v", i, doc, there)
		}
		body, err := next.Encode()
		fatal.If(t, err)
		if e, err = change.DecodeEntry(body); err != nil { // as it is stored
			t.Fatal(err)
		}
	}
	for id, want := range map[string][2]bool{
		"never": {true, true}, "first": {false, true}, "second": {true, true}, "third": {false, true}, "fifth": {false, true},
		"fourth": {false, false}, "not yet": {false, false},
	} {
		if ignored, known := e.Outcome(id); ignored != want[0] || known != want[1] {
			t.Errorf("%s: ignored %v, known %v, want %v", id, ignored, known, want)
		}
	}
	for i := range 100 { // it does not grow
		base := e.ID
		if e, _, _ = change.Apply(e, put(fmt.Sprint(i), base), change.Place{Incarnation: 2, Seq: uint64(i + 1)}); len(e.Recent) > 8 {
			t.Fatalf("it keeps %d outcomes", len(e.Recent))
		}
	}
}

// TestAChangeOfALaterLifeIsApplied: the stream was recreated or restored from a backup, so that sequences restart.
func TestAChangeOfALaterLifeIsApplied(t *testing.T) {
	patch := func(body string) change.Change {
		c, _, err := change.NewUserPatch(t.Context(), "ann", false, []byte(body), secrets())
		fatal.If(t, err)
		return *c
	}
	var e change.Entry
	for _, tt := range []struct {
		body  string
		at    change.Place
		after string
	}{
		{`{"name":"a"}`, change.Place{Incarnation: 100, Seq: 50}, `{"name":"a"}`},
		{`{"name":"b"}`, change.Place{Incarnation: 100, Seq: 50}, `{"name":"a"}`},
		{`{"name":"c"}`, change.Place{Incarnation: 200, Seq: 3}, `{"name":"c"}`},
		{`{"name":"d"}`, change.Place{Incarnation: 200, Seq: 3}, `{"name":"c"}`},
		{`{"name":"e"}`, change.Place{Incarnation: 100, Seq: 60}, `{"name":"c"}`}, // by a superseded owner
		{`{"name":"f"}`, change.Place{Incarnation: 200, Seq: 4}, `{"name":"f"}`},
	} {
		next, _, err := change.Apply(e, patch(tt.body), tt.at)
		if err != nil || string(next.Doc) != tt.after {
			t.Errorf("%s at %v: got %s, %v, want %s", tt.body, tt.at, next.Doc, err, tt.after)
		}
		value, err := next.Encode()
		fatal.If(t, err)
		if e, err = change.DecodeEntry(value); err != nil || e.Place != next.Place {
			t.Errorf("it is kept with %v, %v, want %v", e.Place, err, next.Place)
		}
	}
}

func mustApply(t *testing.T, e change.Entry, c change.Change, seq uint64) change.Entry {
	t.Helper()
	next, applied, err := change.Apply(e, c, change.Place{Seq: seq})
	if err != nil || !applied {
		t.Fatalf("Apply %s at %d: applied %v, %v", c.Kind, seq, applied, err)
	}
	return next
}
