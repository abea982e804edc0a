package record_test

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/s2"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// TestRedact: what is taken out of an entry leaves everything else where it was,
// and can be taken out of what is left again.
func TestRedact(t *testing.T) {
	bodies := []string{`[{"id":"a"},{"id":"b" , "x":[1,2]},{"id":"c"}]`, `[{"id":"d"}]`, `[{"id":"broken"},`, `[{"id":"e"},{"id":"f"}]`}
	var w flow.EntryWriter
	w.Reset(41, 300*time.Second)
	for i, body := range bodies {
		m := flow.Message{
			ID: "request", Hash: "00ff", Subject: "engine-a", Source: "cluster-a", Received: time.UnixMilli(1_763_700_000_000 + int64(i)),
			From: i, Records: strings.Count(body, "id"), Body: []byte(body),
		}
		if i == 0 {
			m.Body, m.Encoding = s2.Encode(nil, m.Body), flow.EncodingS2
		}
		if !w.Add(&m) {
			t.Fatal("the entry is full")
		}
	}
	parse := func(table, body []byte) flow.Entry {
		t.Helper()
		e := flow.Entry{Seq: 42, Table: table, Body: body}
		if err := e.Parse(table, body); err != nil {
			t.Fatal(err)
		}
		return e
	}
	plain := func(e flow.Entry) (all []string) {
		t.Helper()
		for _, m := range e.Messages {
			if m.Encoding != "" {
				body, err := s2.Decode(nil, m.Body)
				if err != nil {
					t.Fatal(err)
				}
				m.Body = body
			}
			all = append(all, string(m.Body))
		}
		return all
	}
	redact := func(e flow.Entry, indexes ...int) flow.Entry {
		t.Helper()
		forget := map[int]bool{}
		for _, i := range indexes {
			forget[i] = true
		}
		header, body, err := record.Redact(&e, func(_ *flow.Message, index int) bool { return forget[index] })
		if err != nil {
			t.Fatal(err)
		}
		var table []byte
		if table, err = base64.RawStdEncoding.DecodeString(header); err != nil {
			t.Fatal(err)
		}
		return parse(table, body)
	}
	whole := parse(w.Table(), w.Body())
	once := redact(whole, 1, 3)
	want := []string{`[{"id":"a"},null,{"id":"c"}]`, `[null]`, bodies[2], bodies[3]}
	if diff := cmp.Diff(want, plain(once)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	want[0], want[2], want[3] = `[null,null,{"id":"c"}]`, ``, `[{"id":"e"},null]`
	if diff := cmp.Diff(want, plain(redact(once, 0, 6, -1))); diff != "" {
		t.Errorf("once more, with a message that cannot be read: -want +got:\n%s", diff)
	}
	for i := range once.Messages {
		once.Messages[i].Body, whole.Messages[i].Body = nil, nil
	}
	if diff := cmp.Diff(whole.Messages, once.Messages); diff != "" || once.Knew != 41 || once.Patience != 300*time.Second {
		t.Errorf("requests: -want +got:\n%s", diff)
	}
	var c record.Columns
	m := flow.Message{Body: []byte(`[{"id":"a"},null]`), Records: 2}
	if bad, err := c.AppendGood(&m); err != nil || len(bad) != 1 || bad[0].Index != 1 || c.Rows() != 1 {
		t.Errorf("a redacted record is decoded: %v, %v, %d rows", bad, err, c.Rows())
	}
}
