package flow_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
)

// makeEntry is the table and the body of an entry of messages, as many as fit.
func makeEntry(logEnd uint64, patience time.Duration, messages ...flow.Message) (table, body []byte, taken int) {
	var w flow.EntryWriter
	for taken < len(messages) && w.Add(&messages[taken]) {
		taken++
	}
	return w.Table(logEnd, patience), w.Body(), taken
}

func parseEntry(table, body []byte) (e flow.Entry, err error) {
	err = e.Parse(table, body)
	return e, err
}

// example is the entry that docs/format.md takes apart.
func example() []flow.Message {
	return []flow.Message{
		{
			ID: "00112233445566778899aabbccddeeff", Hash: "ffeeddccbbaa99887766554433221100", Identified: true,
			Subject: "engine-a", Source: "cluster-a", Revision: 3, Received: time.UnixMilli(1_763_701_200_123).UTC(),
			TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			Records:     2, Body: []byte(`[{"id":"a"},{"id":"b"}]`),
		},
		{
			ID: "key-7", Hash: "ffeeddccbbaa99887766554433221100",
			Subject: "engine-a", Source: "cluster-a", Revision: 3, Received: time.UnixMilli(1_763_701_200_120).UTC(),
			From: 3, Records: 1, Body: []byte(`[{"key":5}]`),
		},
	}
}

func TestAnEntryIsReadBack(t *testing.T) {
	want := example()
	table, body, n := makeEntry(41, 5*time.Minute, want...)
	if n != len(want) {
		t.Fatalf("%d messages fit, want %d", n, len(want))
	}
	got, err := parseEntry(table, body)
	fatal.If(t, err)
	want[1].Ordinal, want[1].Index = 1, 2
	expect.Equal(t, "entry", flow.Entry{LogEnd: 41, Patience: 5 * time.Minute, Messages: want}, got)
	// Without the bodies, as when only headers are read.
	for i := range want {
		want[i].Body = nil
	}
	got, err = parseEntry(table, nil)
	if diff := cmp.Diff(flow.Entry{LogEnd: 41, Patience: 5 * time.Minute, Messages: want}, got); err != nil || diff != "" {
		t.Errorf("entry without bodies: %v (-want +got):\n%s", err, diff)
	}
}

// TestTheExampleOfTheFormat: docs/format.md shows the bytes of an entry.
func TestTheExampleOfTheFormat(t *testing.T) {
	page, err := os.ReadFile("../../docs/format.md")
	fatal.If(t, err)
	_, after, _ := strings.Cut(string(page), "<!-- table -->\n```\n")
	shown, after, found := strings.Cut(after, "```")
	var b []byte
	for line := range strings.Lines(shown) {
		digits, _, _ := strings.Cut(line, "  ") // an explanation follows
		part, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(digits), " ", ""))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		b = append(b, part...)
	}
	table, body, _ := makeEntry(41, 5*time.Minute, example()...)
	if !found || !bytes.Equal(b, table) {
		t.Errorf("docs/format.md shows %x\nthe table is            %x", b, table)
	}
	if header := base64.RawStdEncoding.EncodeToString(table); !strings.Contains(after, header) || !strings.Contains(after, string(body)) {
		t.Errorf("docs/format.md does not show the header %s and the body %s", header, body)
	}
}

func TestAnEntryThatIsFull(t *testing.T) {
	many := func(n, size int, name string) (list []flow.Message) {
		for i := range n {
			list = append(list, flow.Message{ID: fmt.Sprint(i), Subject: fmt.Sprintf(name, i), Records: 1, Body: make([]byte, size)})
		}
		return list
	}
	for name, c := range map[string]struct {
		messages []flow.Message
		want     int
	}{
		"one, whatever its size":          {many(1, 15<<20, ""), 1},
		"one, whatever its names":         {many(1, 1, strings.Repeat("x", 31<<10)), 1},
		"bodies of half a megabyte":       {many(3, 512<<10, ""), 1},
		"bodies that come to half of one": {many(9, 64<<10, ""), 8},
		"names of all sorts":              {many(100, 1, "%d"+strings.Repeat("x", 2000)), 22},
	} {
		t.Run(name, func(t *testing.T) {
			table, body, n := makeEntry(0, 0, c.messages...)
			if n != c.want {
				t.Errorf("%d messages are in the entry, want %d", n, c.want)
			}
			if header := base64.RawStdEncoding.EncodedLen(len(table)); header > 60<<10 {
				t.Errorf("the header has %d bytes, more than NATS takes", header)
			}
			if got, err := parseEntry(table, body); err != nil || len(got.Messages) != n {
				t.Errorf("read back %d, %v", len(got.Messages), err)
			}
		})
	}
}

func TestWhatIsNoEntry(t *testing.T) {
	table, body, _ := makeEntry(41, 5*time.Minute, example()...)
	changed := func(at int, b byte) []byte {
		c := bytes.Clone(table)
		c[at] = b
		return c
	}
	for name, c := range map[string]struct {
		table, body []byte
		want        string
	}{
		"nothing":                       {nil, nil, "the version is not 1"},
		"another version":               {changed(0, 2), body, "at byte 0, before the first row: the version is not 1"},
		"no rows":                       {table[:5], nil, "in row 0: the flags is not a number"},
		"unknown flags":                 {changed(5, 8), body, "at byte 5, in row 0: the flags is 8, more than 7"},
		"JSON and columns":              {changed(5, 7), body, "in row 0: the body is both columns and JSON"},
		"a row that is cut off":         {table[:len(table)-1], body, "in row 1: the length of the body is not a number"},
		"a body that is too short":      {table, body[:len(body)-1], "in row 1: the length of the body is 11, more than 10"},
		"a body that is too long":       {table, append(bytes.Clone(body), '!'), "1 bytes of the body belong to no request"},
		"a number longer than it must":  {append([]byte{1, 0x80, 0}, table[2:]...), body, "the log end is not a number"},
		"a name that is longer than it": {append(bytes.Clone(table[:6]), 0xfe, 1), nil, "in row 0: the id has 127 bytes, and 0 are left"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseEntry(c.table, c.body)
			if err == nil || !strings.Contains(err.Error(), c.want) || len(got.Messages) > 0 {
				t.Errorf("got %d messages, %v, want that %s", len(got.Messages), err, c.want)
			}
		})
	}
}

// FuzzEntry: an entry that can be read is written as the same bytes, so that every table has one meaning and one form.
func FuzzEntry(f *testing.F) {
	table, body, _ := makeEntry(41, 5*time.Minute, example()...)
	f.Add(table, body)
	f.Add(table[:5], []byte(nil))
	table, body, _ = makeEntry(1<<40, 0, flow.Message{Records: 1, TraceParent: "x", Hash: "ab", Received: time.UnixMilli(-5)})
	f.Add(table, body)
	f.Fuzz(func(t *testing.T, table, body []byte) {
		if body == nil {
			body = []byte{}
		}
		e, err := parseEntry(table, body)
		if err != nil {
			if len(e.Messages) > 0 {
				t.Fatalf("%d messages and %v", len(e.Messages), err)
			}
			return
		}
		again, same, n := makeEntry(e.LogEnd, e.Patience, e.Messages...)
		if n < len(e.Messages) {
			return // larger than we would make it
		}
		if !bytes.Equal(again, table) || !bytes.Equal(same, body) {
			t.Fatalf("%x %x was read, and written as %x %x", table, body, again, same)
		}
	})
}
