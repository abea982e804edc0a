package record_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/s2"

	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/record/recordtest"
)

// noise is text that does not compress.
func noise(n int) string {
	random := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = ' ' + 3 + byte(random.IntN(57)) // neither quote nor backslash
	}
	return string(b)
}

// incompressible returns an array of records that do not compress, alone or
// together.
func incompressible(records, size int) string {
	b := []byte(noise(records * size))
	for i := range records {
		copy(b[i*size:], `{"id":"`)
		copy(b[(i+1)*size-3:], `"},`)
	}
	return "[" + string(b[:len(b)-1]) + "]"
}

// parse returns a parsed request that lives as long as the test.
func parse(t *testing.T, body string) *record.Request {
	t.Helper()
	r := record.NewRequest()
	t.Cleanup(r.Release)
	if err := r.Parse([]byte(body), record.FormAuto, record.Limits{RecordBytes: 32 << 20}, received); err != nil {
		t.Fatal(err)
	}
	return r
}

func parts(t *testing.T, r *record.Request, target int) []flow.Piece {
	t.Helper()
	parts, err := r.Pieces(target, nil)
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

// plain returns the JSON of a part.
func plain(t *testing.T, p flow.Piece) []byte {
	t.Helper()
	if p.Encoding == "" {
		return p.Body
	}
	b, err := s2.Decode(nil, p.Body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAnArrayThatFitsIsOnePartAsItIs(t *testing.T) {
	body := " " + string(recordtest.Realistic(200)) + "\n"
	got := parts(t, parse(t, body), flow.DefaultPieceBytes)
	if len(got) != 1 || got[0].Records != 200 || got[0].Encoding != flow.EncodingS2 {
		t.Fatalf("got %d parts, the first of %d records in %q", len(got), got[0].Records, got[0].Encoding)
	}
	if string(plain(t, got[0])) != body {
		t.Error("the part is not the body")
	}
}

func TestRecordsOfOtherFormsBecomeAnArray(t *testing.T) {
	for _, body := range []string{`{"id":"a"}`, "{\"id\":\"a\"}\n", `{"records":[{"id":"a"}]}`} {
		got := parts(t, parse(t, body), flow.DefaultPieceBytes)
		if len(got) != 1 || string(plain(t, got[0])) != `[{"id":"a"}]` {
			t.Errorf("%s: got %d parts, the first %q", body, len(got), got[0].Body)
		}
	}
}

func TestPartsOfALargeRequestHoldItsRecordsInOrder(t *testing.T) {
	tests := []struct {
		name    string
		body    string
		target  int
		atLeast int
	}{
		{"records that compress well are split by their plain size", string(recordtest.Realistic(20_000)), flow.DefaultPieceBytes, 13},
		{"records that do not compress are split by their encoded size", incompressible(400, 9000), flow.DefaultPieceBytes, 2},
		{"a small target makes small parts", string(recordtest.Realistic(2000)), 4 << 10, 20},
		{"white space between records is not carried", "[{}" + strings.Repeat(" ", 8<<20) + ",{}]", flow.DefaultPieceBytes, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := parse(t, test.body)
			got := parts(t, r, test.target)
			if len(got) < test.atLeast {
				t.Errorf("got %d parts, want at least %d", len(got), test.atLeast)
			}
			i := 0
			for _, p := range got {
				if len(p.Body) > test.target && p.Records > 1 {
					t.Errorf("a part of %d records has %d bytes", p.Records, len(p.Body))
				}
				array := plain(t, p)
				if len(array) > 1<<20 {
					t.Errorf("a part has %d bytes before compression", len(array))
				}
				var records []json.RawMessage
				if err := json.Unmarshal(array, &records); err != nil {
					t.Fatal(err)
				}
				if len(records) != p.Records {
					t.Errorf("got %d records, the part says %d", len(records), p.Records)
				}
				for _, raw := range records {
					if !bytes.Equal(raw, r.Record(i)) {
						t.Fatalf("record %d is another one", i)
					}
					i++
				}
			}
			if i != r.Len() {
				t.Errorf("got %d records, want %d", i, r.Len())
			}
		})
	}
}

func TestTheSameBodyMakesTheSameParts(t *testing.T) {
	body := string(recordtest.Realistic(5000))
	first := parse(t, body)
	other := parse(t, strings.Replace(body, "EVENT", "OTHER", -1))
	parts(t, other, flow.DefaultPieceBytes) // a request that was used for something else
	if err := other.Parse([]byte(body), record.FormAuto, record.Limits{}, received); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(parts(t, first, 100<<10), parts(t, other, 100<<10)); diff != "" {
		t.Errorf("(-first +second):\n%s", diff)
	}
}

func TestAPartThatDoesNotCompressIsSentPlain(t *testing.T) {
	body := fmt.Sprintf(`[{"id":%q}]`, noise(1000))
	got := parts(t, parse(t, body), flow.DefaultPieceBytes)
	if len(got) != 1 || got[0].Encoding != "" || string(got[0].Body) != body {
		t.Errorf("got %d parts, the first in %q", len(got), got[0].Encoding)
	}
}

func TestARecordTooLargeForAMessageIsALimit(t *testing.T) {
	large := fmt.Sprintf(`{"id":%q}`, noise(16<<20))
	r := parse(t, "[{},"+large+"]")
	_, err := r.Pieces(flow.DefaultPieceBytes, nil)
	var limit *record.LimitError
	if !errors.As(err, &limit) || limit.Code != record.CodeRecordTooLarge || limit.Index != 1 {
		t.Errorf("got %v, want record 1 to be too large", err)
	}
	compresses := parse(t, `[{},{"id":"`+strings.Repeat("compresses well ", 200_000)+`"}]`)
	for _, p := range parts(t, compresses, flow.DefaultPieceBytes) {
		if len(p.Body) > flow.MaxPieceBytes {
			t.Errorf("got a part of %d bytes", len(p.Body))
		}
	}
}

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
	got := parts(t, r, flow.DefaultPieceBytes)
	if len(got) != 1 || got[0].Slot != 1 || string(plain(t, got[0])) != body {
		t.Errorf("got %d parts, the first of slot %d: %s", len(got), got[0].Slot, plain(t, got[0]))
	}
	// The next request knows nothing of the one before.
	if err := r.Parse([]byte(body), record.FormAuto, record.Limits{}, received); err != nil {
		t.Fatal(err)
	}
	if got := parts(t, r, flow.DefaultPieceBytes); got[0].Slot != 0 {
		t.Errorf("a request that was not spread has a part of slot %d", got[0].Slot)
	}
}

func TestARecordTooLargeIsNamedByItsPlaceInTheBody(t *testing.T) {
	r := parse(t, fmt.Sprintf(`[{"partitionId":3},{"partitionId":2,"id":%q},{"partitionId":2}]`, noise(16<<20)))
	r.Spread(2, "request")
	_, err := r.Pieces(flow.DefaultPieceBytes, nil)
	var limit *record.LimitError
	if !errors.As(err, &limit) || limit.Index != 1 || !strings.Contains(limit.Detail, "compressed") {
		t.Errorf("got %v of record %d, want record 1 to be too large", err, limit.Index)
	}
}
