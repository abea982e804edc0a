package record_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/record/recordtest"
)

var received = time.Date(2025, 11, 21, 6, 0, 0, 0, time.UTC)

// tight are limits that short bodies come up against.
var tight = record.Limits{Records: 4, RecordBytes: 900, Depth: 5, Shaped: true}

func seed(f *testing.F) {
	var array []byte
	for i, raw := range recordtest.Samples() {
		f.Add(raw, false)
		f.Add(raw, true)
		array = append(append(array, "[,"[min(i, 1)]), raw...)
	}
	f.Add(append(array, ']'), false)
	f.Add(bytes.Join(recordtest.Samples(), []byte("\n")), true)
	for _, body := range oddBodies {
		f.Add([]byte(body), false)
		f.Add([]byte(body), true)
	}
}

// FuzzParse compares Parse with a slow one on encoding/json: the same bodies
// are refused for the same reasons, the others hold the same records.
func FuzzParse(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, body []byte, lines bool) {
		form := record.FormAuto
		if lines {
			form = record.FormNDJSON
		}
		compareParse(t, body, form, record.Limits{Records: 50_000, RecordBytes: 4 << 20, Depth: 64})
		compareParse(t, body, form, tight)
	})
}

func compareParse(t *testing.T, body []byte, form record.Form, lim record.Limits) {
	t.Helper()
	before := bytes.Clone(body)
	lim.Mask = record.NoMask
	want := recordtest.ParseBody(body, form, lim)
	r := record.NewRequest()
	defer r.Release()
	err := r.Parse(body, form, lim)
	if !bytes.Equal(before, body) {
		t.Fatal("Parse changed the body")
	}
	var syntax *record.SyntaxError
	var limit *record.LimitError
	var problems *record.ProblemsError
	switch {
	case want.Invalid:
		if !errors.As(err, &syntax) && !errors.As(err, &limit) {
			t.Fatalf("got %v, want a syntax error: %q", err, body)
		}
		return
	case len(want.Limits) > 0:
		if !errors.As(err, &limit) || !want.Limits[limit.Code] {
			t.Fatalf("got %v, want one of %v: %q", err, want.Limits, body)
		}
		return
	case len(want.Problems) > 0:
		if !errors.As(err, &problems) || problems.Total != len(want.Problems) {
			t.Fatalf("got %v, want %v: %q", err, want.Problems, body)
		}
		for _, p := range problems.Problems {
			if p.Detail = ""; !want.Problems[p] {
				t.Fatalf("got %v, want %v: %q", p, want.Problems, body)
			}
		}
		return
	case err != nil:
		t.Fatalf("got %v, want no error: %q", err, body)
	}
	if r.Len() != len(want.Records) {
		t.Fatalf("got %d records, want %d: %q", r.Len(), len(want.Records), body)
	}
	ids, bad, places := 0, 0, 0
	for i, raw := range want.Records {
		if !bytes.Equal(r.Record(i), raw) {
			t.Fatalf("record %d: got %q, want %q", i, r.Record(i), raw)
		}
		row := recordtest.Row(raw)
		if !strings.HasPrefix(row["id"].(string), "h-") {
			ids++
		}
		if row["ts"] == int64(0) {
			bad++
		}
		if row["kind"] == int64(flow.ByPlace) {
			places++
		}
	}
	if r.Identified() != (places == 0) {
		t.Fatalf("identified is %v with %d records that have no identity: %q", r.Identified(), places, body)
	}
	if r.BadTimestamps() != bad {
		t.Fatalf("got %d bad timestamps, want %d: %q", r.BadTimestamps(), bad, body)
	}
	if r.AllIDs() && ids < r.Len() && !bytes.Contains(body, []byte(`h-`)) {
		t.Fatalf("got all ids, want %d of %d: %q", ids, r.Len(), body)
	}
	compareParts(t, r, want.Records)
}

// FuzzMask compares what is left of records whose members called password or
// pin are masked with what encoding/json reads in them.
func FuzzMask(f *testing.F) {
	seed(f)
	f.Add([]byte(`[{"id":"a","password":[{"PIN":1}],"value":{"pin":"12","p\u0069n":7}},{"id":"b"}]`), false)
	f.Add([]byte("{\"records\":[{\"pin\":-1,\"Password\" : {} },{\"paſſword\":\"x\"}]}"), true)
	mask, err := record.NewMask([]string{"pin"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte, lines bool) {
		form := record.FormAuto
		if lines {
			form = record.FormNDJSON
		}
		r, plain := record.NewRequest(), record.NewRequest()
		defer r.Release()
		defer plain.Release()
		lim := record.Limits{Mask: mask}
		if err := r.Parse(bytes.Clone(body), form, lim); err != nil {
			return
		}
		lim.Mask = record.NoMask
		if err := plain.Parse(body, form, lim); err != nil || plain.Len() != r.Len() {
			t.Fatalf("%d records with a mask, %d without, and %v: %q", r.Len(), plain.Len(), err, body)
		}
		for i := range r.Len() {
			got, want := withoutSecrets(t, r.Record(i), true), withoutSecrets(t, plain.Record(i), false)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("record %d of %q is %q (-want +got):\n%s", i, body, r.Record(i), diff)
			}
		}
	})
}

// withoutSecrets reads a record and takes what is masked, or should be, away.
func withoutSecrets(t *testing.T, raw []byte, masked bool) any {
	t.Helper()
	var read any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&read); err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, element := range v {
				walk(element)
			}
		case map[string]any:
			for name, member := range v {
				if strings.EqualFold(name, "password") || strings.EqualFold(name, "pin") {
					if text := fmt.Sprint(member); masked && !slices.Contains([]string{"<nil>", "", "*", "**", "***", "0", "map[]", "[]"}, text) {
						t.Fatalf("%s is %s in %q", name, text, raw)
					}
					v[name] = nil
				} else {
					walk(member)
				}
			}
		}
	}
	walk(read)
	return read
}

// compareParts looks whether the chunks hold exactly the records.
func compareParts(t *testing.T, r *record.Request, want []json.RawMessage) {
	t.Helper()
	for _, target := range []int{1, 200, 512 << 10} {
		chunks, err := r.Cut(target, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []json.RawMessage
		for _, p := range chunks {
			for i := range p.Records {
				raw, err := record.Raw(&flow.Message{Body: p.Body, Encoding: p.Encoding}, i)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, raw)
			}
			if len(p.Body) > target && p.Records > 1 {
				t.Fatalf("a part of %d records has %d bytes, target %d", p.Records, len(p.Body), target)
			}
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("target %d (-want +got):\n%s", target, diff)
		}
	}
}

// FuzzColumns compares the columns of whatever message with those that a slow
// decoder on encoding/json makes of it.
func FuzzColumns(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, body []byte, encoded bool) {
		m := &flow.Message{Lane: 3, Seq: 7, Incarnation: 1763704800000, Source: "cluster-a", Body: body, Received: received}
		if encoded {
			m.Encoding = flow.EncodingS2
		}
		var c record.Columns
		if err := c.Append(m); err != nil && c.Rows() != 0 {
			t.Fatalf("%d rows were left behind by %v", c.Rows(), err)
		}
		if len(body) == 0 {
			return
		}
		m.Body, m.Encoding = append(append([]byte{'['}, body...), ']'), ""
		compareColumns(t, m)
	})
}

// compareColumns decodes with columns that have seen nothing, and with some that
// expect records with a position at the beginning, at the end, and none.
func compareColumns(t *testing.T, m *flow.Message) {
	t.Helper()
	for _, before := range []string{
		``, `{"partitionId":1,"position":2,"timestamp":1763701200123}`,
		`{"x":1,"partitionId":1,"position":2,"timestamp":1763701200123}`, `{"id":"a"}`,
	} {
		compareColumnsAfter(t, message("["+before+"]"), m)
	}
}

func compareColumnsAfter(t *testing.T, before, m *flow.Message) {
	t.Helper()
	var c record.Columns
	if err := c.Append(before); err != nil {
		t.Fatal(err)
	}
	c.Reset()
	err := c.Append(m)
	var bad *record.BadRecordError
	if err != nil && !errors.As(err, &bad) {
		t.Fatalf("got %T, want a *BadRecordError", err)
	}
	want := recordtest.ParseBody(m.Body, record.FormAuto, record.Limits{Records: 1 << 30, RecordBytes: 1 << 30, Depth: 1000})
	switch {
	case want.Invalid || len(want.Limits) > 0:
		if bad == nil || bad.Index != -1 {
			t.Fatalf("got %v, want the message refused: %q", err, m.Body)
		}
		return
	case len(want.Problems) > 0:
		if bad == nil || bad.Index < 0 || len(recordtest.Check(bad.Raw)) == 0 || !bytes.Equal(bad.Raw, want.Records[bad.Index]) {
			t.Fatalf("got %v, want %v: %q", err, want.Problems, m.Body)
		}
		set, err := c.AppendGood(m)
		if err != nil {
			t.Fatalf("without the bad records: %v: %q", err, m.Body)
		}
		for _, b := range set {
			if len(recordtest.Check(want.Records[b.Index])) == 0 {
				t.Fatalf("record %d is not bad: %q", b.Index, m.Body)
			}
		}
		if len(set)+c.Rows() != len(want.Records) {
			t.Fatalf("%d bad and %d good of %d records: %q", len(set), c.Rows(), len(want.Records), m.Body)
		}
	case err != nil:
		t.Fatalf("got %v, want no error: %q", err, m.Body)
	}
	for i := range c.Rows() {
		raw := want.Records[c.StreamIdx[i]]
		wantRow, gotRow := recordtest.Row(raw), recordtest.RowOf(&c, i)
		wantRow["source"] = m.Source
		if wantRow["kind"] == int64(flow.ByPlace) {
			wantRow["identity"] = fmt.Sprintf("%d.%d.%d.%d", m.Lane, m.Incarnation, m.Seq, c.StreamIdx[i])
		}
		for _, row := range []map[string]any{wantRow, gotRow} {
			if row["extra"] != "" {
				row["extra"] = recordtest.Canonical([]byte(row["extra"].(string)))
			}
		}
		if diff := cmp.Diff(wantRow, gotRow); diff != "" {
			t.Fatalf("record %q (-want +got):\n%s", raw, diff)
		}
		queried, err := recordtest.Queried(gotRow)
		if err != nil {
			t.Fatalf("record %q: %v", raw, err)
		}
		if diff := cmp.Diff(recordtest.Posted(raw), queried); diff != "" {
			t.Fatalf("record %q does not round-trip (-posted +queried):\n%s", raw, diff)
		}
	}
}
