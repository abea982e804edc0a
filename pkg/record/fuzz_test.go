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
	"github.com/klauspost/compress/s2"

	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/record/recordtest"
)

var received = time.Date(2025, 11, 21, 6, 0, 0, 0, time.UTC)

// tight are limits that short bodies reach.
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

// FuzzParse compares Parse with a slow parser on encoding/json: both reject the same bodies for the same reasons, and
// find the same records in the others.
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

// FuzzMask compares masked records, byte for byte, with those of a slow masker on encoding/json.
func FuzzMask(f *testing.F) {
	seed(f)
	f.Add([]byte(`[{"id":"a","password":[{"PIN":1}],"value":{"pin":"12","p\u0069n":7}},{"id":"b"}]`), false)
	f.Add([]byte("{\"records\":[{\"pin\":-1,\"Password\" : {} },{\"paſſword\":\"x\"}]}"), true)
	f.Add([]byte(`{"valueType":"VARIABLE","value":{"value":"{\"pin\":[1,{\"a\":2}],\"b\":\"\\u00e9\"}","name":"x"}}`), false)
	f.Add([]byte(`{"value":{"value":"\"{\\\"pin\\\":\\\"\\ud83d\\ude00\\\"}\"","name":"password"},"valueType":"VARIABLE"}`), true)
	f.Add([]byte(`{"value":{"variables":{"a":"\n[\u007b\"pi\u006e\" : 12, \"text\":\"{\\\"pin\\\":null,\\\"PIN\\\":0}\"}]"},"tenantId":"{\"pin\":1}"}}`), false)
	mask, err := record.NewMask([]string{"pin"})
	fatal.If(f, err)
	f.Fuzz(func(t *testing.T, body []byte, lines bool) {
		if bytes.Contains(body, []byte(`\\\\\\\\`)) || bytes.Contains(bytes.ToLower(body), []byte(`u005c`)) {
			return // texts nested too deep, which are hidden as a whole
		}
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
			if got, want := string(r.Record(i)), maskedSlowly(t, plain.Record(i)); got != want {
				t.Fatalf("record %d of %q is\n%q, want\n%q", i, body, got, want)
			}
		}
		i := 0
		for _, p := range chunks(t, r, 1<<20) {
			for _, got := range records(t, p) {
				if want := string(r.Record(i)); !same(got, want) {
					t.Fatalf("record %d of the chunks of %q is\n%q, want\n%q", i, body, got, want)
				}
				i++
			}
		}
	})
}

// maskedSlowly is a record without the values of password and pin.
func maskedSlowly(t *testing.T, raw []byte) string {
	var typed struct{ ValueType any }
	for _, one := range slowMembers(raw) {
		if one.name == "valueType" {
			_ = json.Unmarshal(raw[one.start:one.end], &typed.ValueType)
		}
	}
	var names, values []slowMember
	for _, of := range slowMembers(raw) {
		if of.name != "value" || raw[of.start] != '{' {
			continue
		}
		for _, one := range slowMembers(raw[of.start:of.end]) {
			one.start, one.end = one.start+of.start, one.end+of.start
			switch one.name {
			case "name":
				names = append(names, one)
			case "value":
				values = append(values, one)
			}
		}
	}
	isVariable := typed.ValueType == nil || typed.ValueType == "" || typed.ValueType == "VARIABLE" || typed.ValueType == "CLUSTER_VARIABLE"
	var secrets []slowSecret
	for _, one := range names {
		var name string
		if isVariable && json.Unmarshal(raw[one.start:one.end], &name) == nil && slowName(name) {
			for _, v := range values {
				secrets = append(secrets, slowSecret{v.start, v.end, `"***"`})
			}
		}
	}
	secrets = append(secrets, slowSecrets(raw, 0)...)
	slices.SortStableFunc(secrets, func(a, b slowSecret) int { return a.start - b.start })
	var masked []byte
	read := 0
	for _, one := range secrets {
		value := string(raw[one.start:one.end])
		if one.start < read || value == "null" || value == `""` || value == "{}" || value == "[]" {
			continue
		}
		masked = append(append(masked, raw[read:one.start]...), one.stars...)
		read = one.end
	}
	masked = append(masked, raw[read:]...)
	if !json.Valid(masked) {
		t.Fatalf("the slow masker makes %q of %q", masked, raw)
	}
	return string(masked)
}

func slowName(name string) bool {
	return strings.EqualFold(name, "password") || strings.EqualFold(name, "pin")
}

// slowSecret is a replaced value and its replacement.
type slowSecret struct {
	start, end int
	stars      string
}

// slowMember is a member of an object, or an element of an array, which has no name.
type slowMember struct {
	name       string
	start, end int // of the value
}

// slowMembers are those of an object or array.
func slowMembers(raw []byte) (all []slowMember) {
	d := json.NewDecoder(bytes.NewReader(raw))
	open, err := d.Token()
	if err != nil || open != json.Delim('{') && open != json.Delim('[') {
		return nil
	}
	for d.More() {
		var one slowMember
		if open == json.Delim('{') {
			name, _ := d.Token()
			one.name = name.(string)
		}
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return nil
		}
		one.end = int(d.InputOffset())
		one.start = one.end - len(value)
		all = append(all, one)
	}
	return all
}

// slowSecrets are the members of masked names in a JSON value. Nesting is 0 for the record and 1 for its value, where
// some texts are not searched.
func slowSecrets(raw []byte, nesting int) (all []slowSecret) {
	shift := func(found []slowSecret, by int) {
		for _, one := range found {
			all = append(all, slowSecret{one.start + by, one.end + by, one.stars})
		}
	}
	inObject := raw[0] == '{'
	for _, one := range slowMembers(raw) {
		value := raw[one.start:one.end]
		next := nesting + 2
		if nesting == 0 && one.name == "value" && value[0] == '{' {
			next = 1
		}
		switch {
		case inObject && slowName(one.name):
			all = append(all, slowSecret{one.start, one.end, `"***"`})
		case value[0] != '"':
			shift(slowSecrets(value, next), one.start)
		case nesting > 1 || !slices.Contains(verbatim[nesting], one.name):
			shift(slowText(value), one.start)
		}
	}
	return all
}

// verbatim are members of a record, and of its value, whose texts are not searched.
var verbatim = [2][]string{
	{"id", "key", "recordType", "valueType", "intent", "timestamp", "partitionId", "position", "sourceRecordPosition", "recordVersion", "brokerVersion", "rejectionType", "operationReference", "records"},
	{"bpmnProcessId", "processDefinitionKey", "processDefinitionVersion", "processInstanceKey", "elementId", "elementInstanceKey", "type", "retries", "deadline", "errorCode", "tenantId", "bpmnElementType", "errorType", "flowScopeKey", "parentProcessInstanceKey", "parentElementInstanceKey", "bpmnEventType", "jobKind", "jobKey", "scopeKey", "version", "targetElementId"},
}

// slowText are the secrets in a text that is JSON: their spans, escapes included, and replacements with the same
// escapes.
func slowText(quoted []byte) (all []slowSecret) {
	var text string
	if json.Unmarshal(quoted, &text) != nil || !json.Valid([]byte(text)) {
		return nil
	}
	var at []int // of each byte of text, within quoted
	for i := 1; i < len(quoted)-1; {
		for n := 1; ; n++ { // the fewest bytes that are a text
			var one string
			alone := append(append([]byte{'"'}, quoted[i:i+n]...), '"')
			if json.Unmarshal(alone, &one) != nil || one == "\ufffd" && n == 6 && i+12 < len(quoted) && strings.HasPrefix(text[len(at):], pairOf(quoted[i:i+12])) {
				continue
			}
			for range len(one) {
				at = append(at, i)
			}
			i += n
			break
		}
	}
	at = append(at, len(quoted)-1)
	trimmed := strings.TrimLeft(text, " \t\r\n")
	var found []slowSecret
	if trimmed[0] == '"' {
		found = slowText([]byte(strings.TrimRight(trimmed, " \t\r\n")))
	} else {
		found = slowSecrets([]byte(trimmed), 2)
	}
	skipped := len(text) - len(trimmed)
	for _, one := range found {
		value := trimmed[one.start:one.end]
		if value == "null" || value == `""` || value == "{}" || value == "[]" {
			continue
		}
		stars, _ := json.Marshal(one.stars)
		all = append(all, slowSecret{at[one.start+skipped], at[one.end+skipped], string(stars[1 : len(stars)-1])})
	}
	return all
}

// pairOf is the character of two escapes that form a surrogate pair; empty if they do not.
func pairOf(escapes []byte) string {
	var text string
	if json.Unmarshal([]byte(`"`+string(escapes)+`"`), &text) != nil || len([]rune(text)) != 1 {
		return "nothing"
	}
	return text
}

// compareParts checks that the chunks hold exactly the records.
func compareParts(t *testing.T, r *record.Request, want []json.RawMessage) {
	t.Helper()
	for _, target := range []int{1, 200, 512 << 10} {
		chunks, err := r.Cut(target, 1, nil)
		fatal.If(t, err)
		var got []json.RawMessage
		for _, p := range chunks {
			for _, raw := range records(t, p) {
				got = append(got, json.RawMessage(raw))
			}
			if len(p.Body) > target && p.Records > 1 {
				t.Fatalf("a part of %d records has %d bytes, target %d", p.Records, len(p.Body), target)
			}
		}
		if !slices.EqualFunc(want, got, func(a, b json.RawMessage) bool { return same(string(a), string(b)) }) {
			t.Fatalf("target %d: got\n%s, want\n%s", target, got, want)
		}
		compareJoined(t, chunks, want)
	}
}

// compareJoined compares the joined rows of chunks with those of the records themselves.
func compareJoined(t *testing.T, chunks []flow.Chunk, want []json.RawMessage) {
	t.Helper()
	var got, direct record.Columns
	for _, p := range chunks {
		m := message("")
		m.Index, m.Body, m.Encoding, m.Records = got.Rows(), p.Body, p.Encoding, p.Records
		appended(t, &got, m)
	}
	for i, raw := range want {
		m := message("[" + string(raw) + "]")
		m.Index = i
		appended(t, &direct, m)
	}
	if diff := cmp.Diff(rows(&direct), rows(&got)); diff != "" {
		t.Fatalf("(-of the records +joined):\n%s", diff)
	}
}

// FuzzBody reads arbitrary bytes as the columns of a message.
func FuzzBody(f *testing.F) {
	for _, body := range append(oddBodies, string(bytes.Join(recordtest.Samples(), nil))) {
		r := record.NewRequest()
		if r.Parse([]byte(body), record.FormAuto, record.Limits{}) == nil {
			chunks, err := r.Cut(1<<20, 1, nil)
			fatal.If(f, err)
			for _, p := range chunks {
				plain, err := s2.Decode(nil, p.Body)
				fatal.If(f, err)
				f.Add(plain)
				for _, at := range []int{0, 1, len(plain) / 2, len(plain) - 1} {
					changed := bytes.Clone(plain)
					changed[at] ^= 1
					f.Add(changed)
					f.Add(plain[:at])
				}
			}
		}
	}
	before := message(`[{"id":"a","intent":"CREATED"},{"key":7}]`)
	f.Fuzz(func(t *testing.T, plain []byte) {
		m := message("")
		m.Body, m.Encoding = s2.Encode(nil, plain), flow.EncodingColumns
		var c, alone record.Columns
		appended(t, &c, before)
		appended(t, &alone, before)
		if err := c.Append(m); err != nil {
			if diff := cmp.Diff(rows(&alone), rows(&c)); diff != "" {
				t.Fatalf("what was left behind by %v (-want +got):\n%s", err, diff)
			}
			return
		}
		n := alone.Rows()
		err := record.Each(m, func(int, []byte) error { n++; return nil })
		if err == nil && n != c.Rows() {
			t.Fatalf("%d records of %d rows", n, c.Rows())
		}
		c.Drop([]flow.Run{{From: 0, To: c.Rows() / 2}})
		rows(&c)
	})
}

// FuzzColumns compares the columns of arbitrary messages with those of a slow decoder on encoding/json.
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

// compareColumns decodes with empty columns, and with columns that expect records with a position at the beginning, at
// the end, and without one.
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
	fatal.If(t, c.Append(before))
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
	}
}
