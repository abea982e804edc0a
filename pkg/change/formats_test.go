package change_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/change"
	"sluice/pkg/formattest"
)

// frozen are changes as they stand in lane 0, and entries of the state store.
type frozen struct {
	Changes, Entries []json.RawMessage
}

// meaning is what they are read as.
type meaning struct {
	Changes []change.Change
	Entries []change.Entry
}

// TestFormatsOfEveryVersion: each kind of change, and what is remembered of a user,
// of a field, and of a field that was deleted.
func TestFormatsOfEveryVersion(t *testing.T) {
	at := time.UnixMilli(1_763_701_200_123).UTC()
	user, field := change.Target{User: "ann"}, change.Target{Table: "orders", Field: "total/sum"}
	changes := []change.Change{
		{Kind: change.UserPatched, Target: user, By: "ann", Admin: true, At: at, Members: []string{"name", "status"}, Body: json.RawMessage(`{"name":"Ann <ä>","status":true}`)},
		{Kind: change.FieldPut, Target: field, By: "tool", At: at, Members: []string{"name"}, Body: json.RawMessage(`{"name":"Sum"}`)},
		{Kind: change.FieldDeleted, Target: field, By: "tool", At: at},
	}
	var written frozen
	add := func(list *[]json.RawMessage, text []byte, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		*list = append(*list, text)
	}
	entries := map[change.Target]change.Entry{}
	for i, c := range changes {
		text, err := c.Encode()
		add(&written.Changes, text, err)
		next, _, err := change.Apply(entries[c.Target], c, change.Place{Incarnation: 1_763_701_200_000, Seq: uint64(i + 1)})
		if err != nil {
			t.Fatal(err)
		}
		entries[c.Target] = next
		text, err = next.Encode()
		add(&written.Entries, text, err)
	}
	read := func(t *testing.T, all frozen) (m meaning) {
		for _, text := range all.Changes {
			c, err := change.Decode(text)
			if err != nil {
				t.Errorf("%s: %v", text, err)
			}
			m.Changes = append(m.Changes, c)
		}
		for _, text := range all.Entries {
			e, err := change.DecodeEntry(text)
			if err != nil {
				t.Errorf("%s: %v", text, err)
			}
			m.Entries = append(m.Entries, e)
		}
		return m
	}
	formattest.Check(t, written, read, cmp.Comparer(sameJSON))
}

// sameJSON: a file has it indented.
func sameJSON(a, b json.RawMessage) bool {
	var left, right any
	return json.Unmarshal(a, &left) == nil && json.Unmarshal(b, &right) == nil && reflect.DeepEqual(left, right) || len(a)+len(b) == 0
}
