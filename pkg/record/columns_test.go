package record_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/s2"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/record/recordtest"
)

// rows returns every row of a block, with its place.
func rows(c *record.Columns) []map[string]any {
	var rows []map[string]any
	for i := range c.Rows() {
		row := recordtest.RowOf(c, i)
		row["from"] = fmt.Sprint(c.Lane[i], c.StreamSeq[i], c.StreamIdx[i], c.ReceivedAt[i])
		rows = append(rows, row)
	}
	return rows
}

func appended(t *testing.T, c *record.Columns, m *flow.Message) {
	t.Helper()
	fatal.If(t, c.Append(m))
}

func TestRowsHaveTheirOrigin(t *testing.T) {
	var c record.Columns
	appended(t, &c, &flow.Message{Lane: 3, Seq: 1 << 40, Body: []byte(`[{},{}]`), Received: received})
	appended(t, &c, &flow.Message{Lane: 3, Seq: 1<<40 + 1, Body: []byte(` [ ] `), Received: received})
	appended(t, &c, &flow.Message{Lane: 4, Seq: 9, Body: []byte(`[{}]`), Received: received.Add(time.Millisecond)})
	var got []string
	for _, row := range rows(&c) {
		got = append(got, row["from"].(string))
	}
	want := []string{"3 1099511627776 0 1763704800000", "3 1099511627776 1 1763704800000", "4 9 0 1763704800001"}
	expect.Equal(t, "result", want, got)
}

func TestAMessageWithoutATimeOfReceiptIsFromTheBeginningOfTime(t *testing.T) {
	var c record.Columns
	appended(t, &c, &flow.Message{Body: []byte(`[{"id":"a","timestamp":1763701200123}]`)})
	if c.ReceivedAt[0] != 0 || c.TS[0] != 1763701200123 || len(c.Extra.Value(0)) > 0 {
		t.Errorf("got received %d, ts %d, extra %s", c.ReceivedAt[0], c.TS[0], c.Extra.Value(0))
	}
}

func TestABadRecordLeavesTheColumnsAsTheyWere(t *testing.T) {
	var many []string // more distinct values than a byte can number
	for i := range 400 {
		many = append(many, fmt.Sprintf(`{"intent":"I%d","value":{"worker":"w%d"}}`, i, i))
	}
	good := message("[" + strings.Join(many[:100], ",") + "]")
	bad := message("[" + strings.Join(many, ",") + `,{"key":true}]`)
	var want, got record.Columns
	appended(t, &want, good)
	appended(t, &want, good)
	appended(t, &got, good)
	var broken *record.BadRecordError
	if err := got.Append(bad); !errors.As(err, &broken) || broken.Index != 400 {
		t.Fatalf("got %v, want record 400 to be bad", err)
	}
	appended(t, &got, good)
	expect.Equal(t, "result", rows(&want), rows(&got))
	expect.Equal(t, "the dictionary has values", 101, got.Worker.Values.Rows())
}

func TestARecordCanBeLeftOut(t *testing.T) {
	m := message(`[{"id":"a"},{"key":true},7,{"id":"d"}]`)
	var c record.Columns
	fatal.If(t, c.AppendExcept(m, func(i int) bool { return i == 1 || i == 2 }))
	got := fmt.Sprintf("%s %s %v", c.ID(0), c.ID(1), c.StreamIdx)
	if want := "a d [0 3]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTheGoodRecordsOfAMessageAreKeptAndTheOthersReturned(t *testing.T) {
	var c record.Columns
	bad, err := c.AppendGood(message(`[{"id":"a"},{"key":true},7,{"id":"d"}]`))
	fatal.If(t, err)
	var got []string
	for i := range c.Rows() {
		got = append(got, fmt.Sprintf("%s %d", c.ID(i), c.StreamIdx[i]))
	}
	for _, b := range bad {
		got = append(got, fmt.Sprintf("%d %s %s", b.Index, b.Code, b.Raw))
	}
	want := []string{"a 0", "d 3", `1 not_an_integer {"key":true}`, "2 not_an_object 7"}
	expect.Equal(t, "result", want, got)
	if bad, err := c.AppendGood(message(`[{"id":"a"},{"key":true},{]`)); err == nil || bad != nil || c.Rows() != 2 {
		t.Errorf("a broken message: got %v, %v and %d rows, want an error, nothing and 2 rows", bad, err, c.Rows())
	}
}

func TestEveryRecordOfAMessageCanBeSeen(t *testing.T) {
	var got []string
	err := record.Each(message(`[{"id":"a"}, 7 ]`), func(i int, raw []byte) error {
		got = append(got, fmt.Sprintf("%d %s", i, raw))
		return nil
	})
	if diff := cmp.Diff([]string{`0 {"id":"a"}`, "1 7"}, got); diff != "" || err != nil {
		t.Errorf("got error %v (-want +got):\n%s", err, diff)
	}
	enough := errors.New("enough")
	if err := record.Each(message(`[{},{}]`), func(int, []byte) error { return enough }); err != enough {
		t.Errorf("got %v, want what the function returned", err)
	}
}

func TestARecordCanBeTakenOutAsItWasPosted(t *testing.T) {
	m := message(`[{"id":"a"}, { "key":true } ,7]`)
	m.Body, m.Encoding = s2.Encode(nil, m.Body), flow.EncodingS2
	for i, want := range []string{`{"id":"a"}`, `{ "key":true }`, `7`} {
		if got, err := record.Raw(m, i); err != nil || string(got) != want {
			t.Errorf("record %d: got %s and %v, want %s", i, got, err, want)
		}
	}
	for _, i := range []int{-1, 3} {
		var bad *record.BadRecordError
		if _, err := record.Raw(m, i); !errors.As(err, &bad) || bad.Code != record.CodeNoSuchRecord {
			t.Errorf("record %d: got %v, want none", i, err)
		}
	}
}

func TestAMessageThatIsBrokenIsRefusedAsAWhole(t *testing.T) {
	bomb := append([]byte{0xff, 0xff, 0xff, 0xff, 0x0f}, make([]byte, 100)...) // claims to hold 4 GiB
	tests := []struct {
		name, encoding, body, code string
	}{
		{"nothing", "", "", record.CodeNotAnArray},
		{"an object", "", "{}", record.CodeNotAnArray},
		{"an array without end", "", `[{"id":"a"}`, record.CodeInvalidJSON},
		{"something after the array", "", `[{"id":"a"}]]`, record.CodeInvalidJSON},
		{"a wrong record before a broken one", "", `[{"key":true},{]`, record.CodeInvalidJSON},
		{"bytes that are not UTF-8", "", "[{\"id\":\"\xff\"}]", record.CodeInvalidUTF8},
		{"nesting without end", "", "[" + strings.Repeat(`{"a":[`, 1_000_000), record.CodeTooDeep},
		{"an unknown encoding", "zip", "[]", record.CodeBadEncoding},
		{"a false encoding", flow.EncodingS2, "[]", record.CodeBadEncoding},
		{"a compressed body without end", flow.EncodingS2, string(s2.Encode(nil, recordtest.Realistic(10))[:500]), record.CodeBadEncoding},
		{"a compressed body that claims to be huge", flow.EncodingS2, string(bomb), record.CodeBadEncoding},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := &flow.Message{Body: []byte(test.body), Encoding: test.encoding, Received: received}
			var c record.Columns
			var bad *record.BadRecordError
			if err := c.Append(m); !errors.As(err, &bad) {
				t.Fatalf("got %v, want a *BadRecordError", err)
			}
			if bad.Index != -1 || bad.Code != test.code || bad.Reason == "" || string(bad.Raw) != test.body || c.Rows() != 0 {
				t.Errorf("got %+v with %d rows, want %s of the message", bad, c.Rows(), test.code)
			}
		})
	}
}

func TestDictionariesWidenTheirKeys(t *testing.T) {
	var c record.Columns
	for _, step := range []struct{ values, width int }{{255, 1}, {256, 2}, {65_535, 2}, {65_536, 4}} {
		for n := max(1, c.Worker.Values.Rows()); n <= step.values; n++ {
			appended(t, &c, message(fmt.Sprintf(`[{"value":{"worker":"w%d"}},{}]`, n)))
		}
		if c.Worker.Width != step.width {
			t.Errorf("%d values and the empty one: keys of %d bytes, want %d", step.values, c.Worker.Width, step.width)
		}
	}
	for i := range c.Rows() {
		want := ""
		if i%2 == 0 {
			want = fmt.Sprintf("w%d", i/2+1)
		}
		if got := string(c.Worker.Value(i)); got != want {
			t.Fatalf("row %d: got %q, want %q", i, got, want)
		}
	}
}

func TestColumnsAreReusedBetweenBlocks(t *testing.T) {
	first, second := message(string(recordtest.Realistic(300))), message(string(recordtest.Realistic(100)))
	var reused, fresh record.Columns
	appended(t, &reused, first)
	reused.Reset()
	if reused.Rows() != 0 {
		t.Fatalf("%d rows are left", reused.Rows())
	}
	empty := reused.Bytes()
	appended(t, &reused, second)
	appended(t, &fresh, second)
	if diff := cmp.Diff(rows(&fresh), rows(&reused)); diff != "" {
		t.Errorf("(-fresh +reused):\n%s", diff)
	}
	if got := reused.Bytes() - empty; got < 100*200 || got > 100*800 {
		t.Errorf("100 records of 690 bytes take %d bytes", got)
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	r := parse(t, string(recordtest.Realistic(500)))
	p := chunks(t, r, flow.DefaultChunkBytes)[0]
	m := &flow.Message{Body: p.Body, Encoding: p.Encoding, Received: received}
	var c record.Columns
	appended(t, &c, m)
	n := testing.AllocsPerRun(20, func() {
		c.Reset()
		appended(t, &c, m)
	})
	expect.Not(t, n > 5, "got %v allocations for 500 records, want at most 5", n)
}

// TestColumnsReportTheirSize: Held is at least the memory that Reset keeps.
func TestColumnsReportTheirSize(t *testing.T) {
	var c record.Columns
	long := strings.Repeat("x", 1<<20)
	appended(t, &c, &flow.Message{Body: []byte(`[{"value":{"errorMessage":"` + long + `"}}]`), Received: received})
	c.Reset()
	appended(t, &c, &flow.Message{Body: []byte(`[{"value":{"customHeaders":"` + long + `"}}]`), Received: received})
	bytes := c.Bytes()
	c.Reset()
	if held := c.Held(); bytes < 1<<20 || held < 2<<20 || held > 8<<20 {
		t.Errorf("held %d after blocks of %d bytes in two columns", held, bytes)
	}
	expect.Equal(t, "new columns hold bytes", 0, new(record.Columns).Held())
}
