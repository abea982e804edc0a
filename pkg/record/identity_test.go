package record_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/record/recordtest"
)

var freeze = flag.Bool("freeze", false, "rewrite testdata/content.txt: only for vectors that were added")

// one decodes one record.
func one(t *testing.T, raw string) *record.Columns {
	t.Helper()
	var c record.Columns
	if err := c.Append(message("[" + raw + "]")); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return &c
}

func TestIdentityOfARecord(t *testing.T) {
	const time = `,"timestamp":1763701200123`
	tests := []struct {
		name, record string
		kind         uint8
		id, own      string
	}{
		{"partition, position and a timestamp", `{"partitionId":1,"position":7` + time + `}`, flow.ByPosition, "1-7", ""},
		{"with the id that follows from them", `{"id":"1-7","partitionId":1,"position":7` + time + `}`, flow.ByPosition, "1-7", ""},
		{"with an id of its own", `{"id":"x","partitionId":1,"position":7` + time + `}`, flow.ByPosition, "x", "x"},
		{"with an id that only looks like it", `{"id":"01-7","partitionId":1,"position":7` + time + `}`, flow.ByPosition, "01-7", "01-7"},
		{"as decimal strings", `{"partitionId":"1","position":"7"` + time + `}`, flow.ByPosition, "1-7", ""},
		{"at the end of all positions", `{"partitionId":1,"position":9223372036854775807` + time + `}`, flow.ByPosition, "1-9223372036854775807", ""},
		{"position 0 is a placeholder", `{"id":"1-0","partitionId":1,"position":0` + time + `}`, flow.ByContent, "1-0", ""},
		{"position -1 is a placeholder", `{"id":"a","partitionId":1,"position":-1` + time + `}`, flow.ByContent, "a", "a"},
		{"partition 0 is a placeholder", `{"id":"a","partitionId":0,"position":7` + time + `}`, flow.ByContent, "a", "a"},
		{"partition -1 is a placeholder", `{"id":"a","partitionId":-1,"position":7` + time + `}`, flow.ByContent, "a", "a"},
		{"the greatest partition", `{"partitionId":8191,"position":7` + time + `}`, flow.ByPosition, "8191-7", ""},
		{"a partition that no engine has", `{"id":"8192-7","partitionId":8192,"position":7` + time + `}`, flow.ByContent, "8192-7", ""},
		{"a position that is not a number", `{"id":"a","partitionId":1,"position":"seven"` + time + `}`, flow.ByContent, "a", "a"},
		{"a key of -1 counts as none", `{"id":"a","key":-1` + time + `}`, flow.ByContent, "a", "a"},
		{"no timestamp", `{"id":"1-7","partitionId":1,"position":7}`, flow.ByContent, "1-7", ""},
		{"a timestamp of 0", `{"id":"1-7","partitionId":1,"position":7,"timestamp":0}`, flow.ByContent, "1-7", ""},
		{"a timestamp in seconds", `{"id":"1-7","partitionId":1,"position":7,"timestamp":1763701200}`, flow.ByContent, "1-7", ""},
		{"a timestamp far ahead", `{"id":"1-7","partitionId":1,"position":7,"timestamp":4763701200123}`, flow.ByContent, "1-7", ""},
		{"an id alone is never a position", `{"id":"1-7"` + time + `}`, flow.ByContent, "1-7", ""},
		{"neither", `{"key":5` + time + `}`, flow.ByPlace, "", ""},
		{"an empty id counts as none", `{"id":"","position":7` + time + `}`, flow.ByPlace, "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := one(t, test.record)
			if c.Kind[0] != test.kind {
				t.Fatalf("kind %d, want %d", c.Kind[0], test.kind)
			}
			identity := string(c.Identity.Value(0))
			switch test.kind {
			case flow.ByPosition:
				expect.Not(t, identity != "", "identity %q, want none", identity)
			case flow.ByContent:
				expect.Not(t, len(identity) != flow.ContentBytes, "identity %x, want %d bytes", identity, flow.ContentBytes)
			case flow.ByPlace:
				if identity != "3.1763704800000.7.0" || !strings.HasPrefix(c.ID(0), "h-") {
					t.Errorf("identity %q, id %q, want the place and a hash", identity, c.ID(0))
				}
				return
			}
			if got := string(c.OwnID.Value(0)); c.ID(0) != test.id || got != test.own {
				t.Errorf("id %q stored as %q, want %q stored as %q", c.ID(0), got, test.id, test.own)
			}
		})
	}
}

func TestContentDoesNotDependOnHowItIsWritten(t *testing.T) {
	const first = `{"id":"a","key":1,"x":[1,{"b":2,"c":"d"}],"value":{"worker":"w","type":"t","variables":{"p":1,"q":[]}}}`
	content := func(raw string) string { return string(one(t, raw).Identity.Value(0)) }
	want := content(first)
	for _, same := range []string{
		`{"value":{"variables":{"q":[],"p":1},"type":"t","worker":"w"},"x":[1,{"c":"d","b":2}],"key":1,"id":"a"}`,
		" { \"id\" : \"a\" ,\n\"key\":1, \"x\":[ 1 , {\"b\":2,\"c\":\"d\"} ] , \"value\":{\"worker\":\"\\u0077\",\"type\":\"t\",\"variables\":{ \"p\":1,\"q\":[ ] }}}",
	} {
		expect.Not(t, content(same) != want, "%s: another content", same)
	}
	for _, other := range []string{
		strings.Replace(first, `"key":1`, `"key":2`, 1),
		strings.Replace(first, `"key":1`, `"key":-1`, 1),
		strings.Replace(first, `"key":1`, `"key":1.0`, 1),
		strings.Replace(first, `"key":1`, `"key":"1"`, 1),
		strings.Replace(first, `[1,{`, `[{`, 1),
		strings.Replace(first, `"q":[]`, `"q":{}`, 1),
		strings.Replace(first, `"q":[]`, `"q":null`, 1),
		strings.Replace(first, `,"type":"t"`, ``, 1),
		strings.Replace(first, `"worker":"w","type":"t"`, `"worker":"t","type":"w"`, 1),
		strings.Replace(first, `"id":"a"`, `"id":"b"`, 1),
	} {
		expect.Not(t, content(other) == want, "%s: the same content", other)
	}
}

// vectors are records whose content hash is frozen.
func vectors() (raw []string) {
	for _, sample := range recordtest.Samples() {
		raw = append(raw, string(sample))
	}
	return append(raw,
		`{"id":"a"}`,
		`{"id":"a","n":[0,1,-1,999999999999999999,-999999999999999999,1000000000000000000,1.0,1e3,-0]}`,
		`{"id":"a","t":["","\u0000","ü\u00fc","\ud83d\ude00","\ud800",true,false,null]}`,
		`{"id":"a","nested":{"o":{},"a":[],"d":[[[{"x":[]}]]]}}`,
		`{"id":"a","twice":1,"twice":2,"key":1,"key":2,"value":{"worker":"a"},"value":{"type":"b"}}`,
		`{"id":"a","value":null}`,
		`{"id":"\u0061","value":{"elementId":7,"customHeaders":{"b":1,"a":"\n"},"targetElementId":"x"}}`,
	)
}

// TestContentIsFrozen: the hash is stored permanently. If a vector changed, resent records would be stored twice.
func TestContentIsFrozen(t *testing.T) {
	var got bytes.Buffer
	for _, raw := range vectors() {
		compareColumns(t, message("["+raw+"]")) // with the slow decoder
		c := one(t, raw)
		if c.Kind[0] == flow.ByContent {
			fmt.Fprintf(&got, "%x %s\n", c.Identity.Value(0), raw)
		}
	}
	const file = "testdata/content.txt"
	if *freeze {
		fatal.If(t, os.WriteFile(file, got.Bytes(), 0o644))
	}
	want, err := os.ReadFile(file)
	fatal.If(t, err)
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("content hashes (-frozen +got):\n%s", diff)
	}
}

func TestRowsAreDropped(t *testing.T) {
	var records []string
	for i := range 700 { // more symbols than a byte numbers
		records = append(records, fmt.Sprintf(`{"id":"r%d","key":%d,"value":{"worker":"w%d","retries":%d,"variables":{"n":%d}}}`, i, i, i, i%3, i))
	}
	for _, runs := range [][]flow.Run{
		nil, {{From: 0, To: 1}}, {{From: 699, To: 700}}, {{From: 0, To: 700}}, {{From: 3, To: 5}}, {{From: 0, To: 2}, {From: 4, To: 5}, {From: 698, To: 700}}, {{From: 1, To: 2}, {From: 3, To: 4}, {From: 5, To: 6}},
	} {
		t.Run(fmt.Sprint(runs), func(t *testing.T) {
			m := message("[" + strings.Join(records, ",") + "]")
			var c record.Columns
			appended(t, &c, m)
			all := rows(&c)
			var want []map[string]any
			for i, row := range all {
				dropped := false
				for _, r := range runs {
					dropped = dropped || r.From <= i && i < r.To
				}
				if !dropped {
					want = append(want, row)
				}
			}
			text := flow.FormatRuns(runs)
			parsed, err := flow.ParseRuns(text)
			if diff := cmp.Diff(runs, parsed); diff != "" || err != nil {
				t.Fatalf("%q: %v (-want +parsed):\n%s", text, err, diff)
			}
			c.Drop(parsed)
			expect.Equal(t, "rows", want, rows(&c))
			appended(t, &c, m) // goes on as before
			expect.Equal(t, "rows after more were appended", append(want, all...), rows(&c))
		})
	}
}

func TestRowsAreArranged(t *testing.T) {
	var c record.Columns
	appended(t, &c, message(`[{"id":"a","value":{"errorMessage":"first"}},{"id":"b"},{"id":"cc","value":{"errorMessage":"third"}}]`))
	all := rows(&c)
	c.Arrange([]int{2, 0, 1})
	expect.Equal(t, "rows", []map[string]any{all[2], all[0], all[1]}, rows(&c))
}
