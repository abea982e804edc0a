package record_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sluice/pkg/record"
)

// slotted are the records of a request by the slot they are cut for, as text.
func slotted(t *testing.T, r *record.Request, slots int, id string) map[int][]string {
	t.Helper()
	r.Spread(slots, id)
	bySlot := map[int][]string{}
	var order []int
	for _, p := range parts(t, r, 4<<10) {
		var list []json.RawMessage
		if err := json.Unmarshal(plain(t, p), &list); err != nil {
			t.Fatal(err)
		}
		if len(list) != p.Records {
			t.Errorf("got %d records, the part says %d", len(list), p.Records)
		}
		for _, raw := range list {
			bySlot[p.Slot] = append(bySlot[p.Slot], string(raw))
		}
		order = append(order, p.Slot)
	}
	if !slices.IsSorted(order) {
		t.Errorf("the slots of the parts are %v, want them in order", order)
	}
	return bySlot
}

func TestRecordsAreCutBySlot(t *testing.T) {
	var body []string
	for i := range 3000 { // of partitions 1 to 3, or of none with an id, or with nothing
		body = append(body, fmt.Sprintf(`{"partitionId":%d,"id":"%.*s","key":%d}`, max(0, i%7-3), i%5*2, fmt.Sprintf("id-%d", i), i))
	}
	r := parse(t, "["+strings.Join(body, ",")+"]")
	for _, slots := range []int{0, 1, 2, 3, 7} {
		got := slotted(t, r, slots, "request")
		if len(got) != max(1, slots) {
			t.Errorf("%d slots: records in %d of them", slots, len(got))
		}
		next := map[int]int{}
		for i := range r.Len() {
			raw := r.Record(i)
			slot := record.SlotOf(raw, slots, "request")
			if n := next[slot]; n >= len(got[slot]) || got[slot][n] != string(raw) {
				t.Fatalf("%d slots: record %d is not number %d of slot %d", slots, i, n, slot)
			}
			next[slot]++
		}
		for slot, list := range got {
			if next[slot] != len(list) {
				t.Errorf("%d slots: slot %d has %d records, want %d", slots, slot, len(list), next[slot])
			}
		}
	}
}

func TestASlotFollowsFromWhatARecordIs(t *testing.T) {
	const slots = 1000
	by := func(raw, request string) int { return record.SlotOf([]byte(raw), slots, request) }
	for name, c := range map[string]struct {
		raw  string
		want int
	}{
		"its partition":                             {`{"partitionId":7,"id":"a"}`, 7},
		"a partition beyond the slots":              {`{"partitionId":2003}`, 3},
		"a partition that is sent as text":          {`{"partitionId":"7","id":"b"}`, 7},
		"a partition that is written with zeros":    {`{"partitionId":7.0,"id":"b"}`, 7},
		"without one, its id":                       {`{"id":"ab","key":3}`, by(`{"key":4,"id":"ab"}`, "other")},
		"a partition that is none is as without":    {`{"id":"ab","partitionId":0}`, by(`{"id":"ab"}`, "other")},
		"so is one that is no number":               {`{"id":"ab","partitionId":{}}`, by(`{"id":"ab"}`, "other")},
		"an id is what it says, not how":            {`{"id":"\u0061b"}`, by(`{"id":"ab"}`, "other")},
		"an id that is a number is its text":        {`{"id":17}`, by(`{"id":"17"}`, "other")},
		"the last one counts":                       {`{"partitionId":3,"partitionId":4}`, 4},
		"without both, its request":                 {`{"key":3}`, by(`{}`, "request")},
		"an empty id is none":                       {`{"id":""}`, by(`{}`, "request")},
		"what cannot be read goes with its request": {`{"id":"ab"`, by(`{}`, "request")},
		"so does what is no record":                 {`[1]`, by(`{}`, "request")},
	} {
		t.Run(name, func(t *testing.T) {
			if got := by(c.raw, "request"); got != c.want {
				t.Errorf("slot %d, want %d", got, c.want)
			}
		})
	}
	if a, b := by(`{"id":"ab"}`, ""), by(`{"id":"ac"}`, ""); a == b {
		t.Errorf("two ids are of slot %d", a)
	}
	if a, b := by(`{}`, "one"), by(`{}`, "two"); a == b {
		t.Errorf("two requests are of slot %d", a)
	}
}

func TestARequestOfOneSlotIsOnePartAsItIs(t *testing.T) {
	body := `[ {"partitionId":3,"position":1}, {"partitionId":3,"position":2} ]`
	r := parse(t, body)
	r.Spread(2, "request")
	got := parts(t, r, record.DefaultPartBytes)
	if len(got) != 1 || got[0].Slot != 1 || string(plain(t, got[0])) != body {
		t.Errorf("got %d parts, the first of slot %d: %s", len(got), got[0].Slot, plain(t, got[0]))
	}
	// The next request knows nothing of the one before.
	if err := r.Parse([]byte(body), record.FormAuto, record.Limits{}, received); err != nil {
		t.Fatal(err)
	}
	if got := parts(t, r, record.DefaultPartBytes); got[0].Slot != 0 {
		t.Errorf("a request that was not spread has a part of slot %d", got[0].Slot)
	}
}

func TestARecordTooLargeIsNamedByItsPlaceInTheBody(t *testing.T) {
	r := parse(t, fmt.Sprintf(`[{"partitionId":3},{"partitionId":2,"id":%q},{"partitionId":2}]`, noise(16<<20)))
	r.Spread(2, "request")
	_, err := r.Parts(record.DefaultPartBytes, nil)
	var limit *record.LimitError
	if !errors.As(err, &limit) || limit.Index != 1 || !strings.Contains(limit.Detail, "compressed") {
		t.Errorf("got %v of record %d, want record 1 to be too large", err, limit.Index)
	}
}
