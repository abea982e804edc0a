package record_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/s2"

	"sluice/pkg/fatal"
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

// tiny returns an array of records whose rows take far more memory than their JSON.
func tiny(records int) string {
	b := []byte("[")
	for i := range records {
		b = fmt.Appendf(b, `{"key":%d},`, i)
	}
	return string(b[:len(b)-1]) + "]"
}

// parse returns a parsed request, released after the test.
func parse(t *testing.T, body string) *record.Request {
	t.Helper()
	r := record.NewRequest()
	t.Cleanup(r.Release)
	fatal.If(t, r.Parse([]byte(body), record.FormAuto, record.Limits{RecordBytes: 32 << 20}))
	return r
}

func chunks(t *testing.T, r *record.Request, target int) []flow.Chunk {
	t.Helper()
	chunks, err := r.Cut(target, 1, nil)
	fatal.If(t, err)
	return chunks
}

// records returns the records of a chunk, rewritten as JSON.
func records(t *testing.T, p flow.Chunk) (all []string) {
	t.Helper()
	fatal.If(t, record.Each(&flow.Message{Body: p.Body, Encoding: p.Encoding, Records: p.Records}, func(i int, raw []byte) error {
		if i != len(all) {
			t.Errorf("record %d has the index %d", len(all), i)
		}
		all = append(all, string(raw))
		return nil
	}))
	return all
}

// same reports whether two records have the same members.
func same(a, b string) bool {
	return recordtest.Same([]byte(a), []byte(b))
}

func TestChunksOfALargeRequestHoldItsRecordsInOrder(t *testing.T) {
	tests := []struct {
		name    string
		body    string
		target  int
		atLeast int
	}{
		{"records that compress well are split by their plain size", string(recordtest.Realistic(20_000)), flow.DefaultChunkBytes, 13},
		{"records that do not compress are split by their encoded size", incompressible(400, 9000), flow.DefaultChunkBytes, 2},
		{"a small target makes small chunks", string(recordtest.Realistic(2000)), 1 << 10, 8},
		{"tiny records are split by their rows", tiny(40_000), 4 << 20, 3},
		{"white space between records is not carried", "[{}" + strings.Repeat(" ", 8<<20) + ",{}]", flow.DefaultChunkBytes, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := parse(t, test.body)
			got := chunks(t, r, test.target)
			if len(got) < test.atLeast {
				t.Errorf("got %d chunks, want at least %d", len(got), test.atLeast)
			}
			i := 0
			for _, p := range got {
				if len(p.Body) > test.target && p.Records > 1 {
					t.Errorf("a chunk of %d records has %d bytes", p.Records, len(p.Body))
				}
				if size, err := s2.DecodedLen(p.Body); err != nil || size > 1<<20 {
					t.Errorf("a chunk has %d bytes before compression, %v", size, err)
				}
				for _, raw := range records(t, p) {
					if !same(raw, string(r.Record(i))) {
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

func TestTheSameBodyMakesTheSameChunks(t *testing.T) {
	body := string(recordtest.Realistic(5000))
	first := parse(t, body)
	other := parse(t, strings.Replace(body, "EVENT", "OTHER", -1))
	chunks(t, other, flow.DefaultChunkBytes) // a request that is reused
	fatal.If(t, other.Parse([]byte(body), record.FormAuto, record.Limits{}))
	chunks(t, other, 50<<10) // makes the next Cut parse the records again
	if diff := cmp.Diff(chunks(t, first, 100<<10), chunks(t, other, 100<<10)); diff != "" {
		t.Errorf("(-first +second):\n%s", diff)
	}
}

func TestARecordTooLargeForAMessageIsALimit(t *testing.T) {
	large := fmt.Sprintf(`{"id":%q}`, noise(16<<20))
	r := parse(t, "[{},"+large+"]")
	_, err := r.Cut(flow.DefaultChunkBytes, 1, nil)
	var limit *record.LimitError
	if !errors.As(err, &limit) || limit.Code != record.CodeRecordTooLarge || limit.Index != 1 {
		t.Errorf("got %v, want record 1 to be too large", err)
	}
	compresses := parse(t, `[{},{"id":"`+strings.Repeat("compresses well ", 200_000)+`"}]`)
	for _, p := range chunks(t, compresses, flow.DefaultChunkBytes) {
		if len(p.Body) > flow.MaxChunkBytes {
			t.Errorf("got a chunk of %d bytes", len(p.Body))
		}
	}
}

// byLane returns the records of a request by lane, as text.
func byLane(t *testing.T, r *record.Request, lanes int) map[int][]string {
	t.Helper()
	list, err := r.Cut(4<<10, lanes, nil)
	fatal.If(t, err)
	all := map[int][]string{}
	var order []int
	for _, p := range list {
		all[p.Lane] = append(all[p.Lane], records(t, p)...)
		order = append(order, p.Lane)
	}
	if !slices.IsSorted(order) {
		t.Errorf("the lanes of the chunks are %v, want them in order", order)
	}
	return all
}

func TestRecordsAreCutByLane(t *testing.T) {
	var body []string
	for i := range 3000 { // of partitions 1 to 3, or of none with an id, or with nothing
		body = append(body, fmt.Sprintf(`{"partitionId":%d,"position":%d,"timestamp":1700000000000,"id":"%.*s","key":%d}`, max(0, i%7-3), i+1, i%5*2, fmt.Sprintf("id-%d", i), i))
	}
	r := parse(t, "["+strings.Join(body, ",")+"]")
	for _, lanes := range []int{7, 0, 1, 2, 3} {
		got := byLane(t, r, lanes)
		if len(got) != max(1, lanes) {
			t.Errorf("%d lanes: records in %d of them", lanes, len(got))
		}
		next := map[int]int{}
		for i, raw := range body {
			lane := record.LaneOf([]byte(raw), lanes)
			if n := next[lane]; n >= len(got[lane]) || !same(got[lane][n], raw) {
				t.Fatalf("%d lanes: record %d is not number %d of lane %d", lanes, i, n, lane)
			}
			next[lane]++
		}
		for lane, list := range got {
			if next[lane] != len(list) {
				t.Errorf("%d lanes: lane %d has %d records, want %d", lanes, lane, len(list), next[lane])
			}
		}
	}
}

// TestALaneFollowsFromTheRecordAlone: the lane depends on the deduplication key, never on a clock or on the request.
func TestALaneFollowsFromTheRecordAlone(t *testing.T) {
	const lanes = 1000
	of := func(raw string) int { return record.LaneOf([]byte(raw), lanes) }
	at := func(partition, position, timestamp string) string {
		return fmt.Sprintf(`{"partitionId":%s,"position":%s,"timestamp":%s,"id":"ab"}`, partition, position, timestamp)
	}
	byID := of(`{"key":4,"id":"ab"}`)
	for name, c := range map[string]struct {
		raw  string
		want int
	}{
		"its partition":                              {at("7", "1", "1700000000000"), 7},
		"a partition beyond the lanes":               {at("2003", "1", "1700000000000"), 3},
		"a partition that is sent as text":           {at(`"7"`, `"1"`, "1700000000000"), 7},
		"a partition that is written with zeros":     {at("7.0", "1", "1700000000000"), 7},
		"a timestamp as text":                        {at("7", "1", `"2099-12-31T23:59:59Z"`), 7},
		"the last one counts":                        {`{"partitionId":3,"partitionId":4,"position":1,"timestamp":1700000000000}`, 4},
		"without a partition, its id":                {`{"id":"ab","key":3}`, byID},
		"an invalid partition counts as none":        {at("0", "1", "1700000000000"), byID},
		"so is one beyond Camunda's":                 {at("8192", "1", "1700000000000"), byID},
		"so is one that is not a number":             {at("{}", "1", "1700000000000"), byID},
		"so is one without a position":               {at("7", "0", "1700000000000"), byID},
		"so is one before 2000":                      {at("7", "1", "946684799999"), byID},
		"so is one after 2099":                       {at("7", "1", "4102444800000"), byID},
		"an id counts unescaped":                     {`{"id":"\u0061b"}`, byID},
		"an id that is a number is its text":         {`{"id":17}`, of(`{"id":"17"}`)},
		"without both, the first lane":               {`{"key":3}`, 0},
		"an empty id counts as none":                 {`{"id":""}`, 0},
		"an unreadable record goes to the first too": {`{"id":"ab"`, 0},
		"so does another value":                      {`[1]`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := of(c.raw); got != c.want {
				t.Errorf("lane %d, want %d", got, c.want)
			}
		})
	}
	if a := of(`{"id":"ac"}`); a == byID || byID == 0 {
		t.Errorf("two ids have lanes %d and %d", a, byID)
	}
}

func TestARecordTooLargeIsNamedByItsPlaceInTheBody(t *testing.T) {
	r := parse(t, fmt.Sprintf(`[{"partitionId":3,"position":1,"timestamp":1700000000000},{"id":%q},{}]`, noise(16<<20)))
	_, err := r.Cut(flow.DefaultChunkBytes, 2, nil)
	var limit *record.LimitError
	if !errors.As(err, &limit) || limit.Index != 1 || !strings.Contains(limit.Detail, "compressed") {
		t.Errorf("got %v of record %d, want record 1 to be too large", err, limit.Index)
	}
}
