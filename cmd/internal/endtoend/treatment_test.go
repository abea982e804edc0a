package endtoend

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// stored is a record as it is posted, and what some of its columns then hold.
type stored struct {
	name   string
	record string            // %s is its id
	want   map[string]string // column: text, NULL for null
}

// everyTreatmentOfAValue posts each kind of value that engines send and looks at
// what ClickHouse holds of it.
func everyTreatmentOfAValue(t *testing.T, s *stack) {
	all := []stored{
		{"unknown members are kept as they were sent", `{"id":%q,"future":[1.50],"value":{"new":{"a":null}}}`,
			map[string]string{"extra": `{"new":{"a":null},"_record":{"future":[1.50]}}`}},
		{"missing members are nothing", `{"id":%q}`,
			map[string]string{"retries": "NULL", "deadline": "NULL", "worker": "", "variables": "{}", "custom_headers": "{}", "process_instance_key": ""}},
		{"null members are nothing", `{"id":%q,"value":{"retries":null,"worker":null,"variables":null}}`,
			map[string]string{"retries": "NULL", "worker": "", "variables": "{}"}},
		{"integers beyond 2^53 are exact", `{"id":%q,"key":9223372036854775807,"value":{"elementInstanceKey":-9223372036854775808}}`,
			map[string]string{"key": "9223372036854775807", "element_instance_key": "-9223372036854775808"}},
		{"integers as text are integers", `{"id":%q,"key":"9007199254740993","value":{"retries":"-1"}}`,
			map[string]string{"key": "9007199254740993", "retries": "-1"}},
		{"integers written with a point or an exponent are integers", `{"id":%q,"key":5.0,"value":{"retries":1e3}}`,
			map[string]string{"key": "5", "retries": "1000"}},
		{"numbers are taken as text where text is declared", `{"id":%q,"value":{"processInstanceKey":2251799813685290,"worker":3.50}}`,
			map[string]string{"process_instance_key": "2251799813685290", "worker": "3.50"}},
		{"a key of an instance need not be a number", `{"id":%q,"value":{"processInstanceKey":"order/17 é"}}`,
			map[string]string{"process_instance_key": "order/17 é"}},
		{"a timestamp in milliseconds", `{"id":%q,"timestamp":1763701200123}`, map[string]string{"ts": "2025-11-21 05:00:00.123"}},
		{"a timestamp in ISO 8601", `{"id":%q,"timestamp":"2025-11-21T06:00:00.123+01:00"}`, map[string]string{"ts": "2025-11-21 05:00:00.123"}},
		{"no timestamp", `{"id":%q}`, map[string]string{"ts": "1970-01-01 00:00:00.000"}},
		{"a timestamp in seconds", `{"id":%q,"timestamp":1763701200}`,
			map[string]string{"ts": "1970-01-01 00:00:00.000", "extra": `{"_record":{"timestamp":1763701200}}`}},
		{"a timestamp in microseconds", `{"id":%q,"timestamp":1763701200123000}`,
			map[string]string{"ts": "1970-01-01 00:00:00.000", "extra": `{"_record":{"timestamp":1763701200123000}}`}},
		{"a deadline that is not set", `{"id":%q,"value":{"deadline":-1}}`, map[string]string{"deadline": "-1"}},
		{"a deadline in ISO 8601", `{"id":%q,"value":{"deadline":"2025-11-21T05:00:00.123Z"}}`, map[string]string{"deadline": "1763701200123"}},
		{"variables of any kind", `{"id":%q,"value":{"variables":[1,"a",null],"customHeaders":"text"}}`,
			map[string]string{"variables": `[1,"a",null]`, "custom_headers": `"text"`}},
		{"a member that comes twice counts the last time", `{"id":%q,"key":1,"key":2}`, map[string]string{"key": "2"}},
		{"a version by either name", `{"id":%q,"value":{"version":7}}`, map[string]string{"version": "7"}},
		{"an element by either name", `{"id":%q,"value":{"targetElementId":"Event_wait"}}`, map[string]string{"element_id": "Event_wait"}},
		{"escapes are undone in text", `{"id":%q,"value":{"errorMessage":"a\n\t\"\u00e9\ud83d\ude00"}}`, map[string]string{"error_message": "a\n\t\"é😀"}},
	}
	for i, tt := range all {
		if err := wantOK(s.post(fmt.Appendf(nil, tt.record, fmt.Sprintf("t-%d", i)))); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
	}
	for i, tt := range all {
		t.Run(tt.name, func(t *testing.T) {
			row := s.row(t, fmt.Sprintf("t-%d", i))
			for column, want := range tt.want {
				if got := text(row[column]); got != want {
					t.Errorf("%s is %q, want %q", column, got, want)
				}
			}
		})
	}
	t.Run("a record without an id gets the same one every time", func(t *testing.T) {
		for range 2 {
			if res, body := s.post([]byte(`{"key":77,"intent":"NAMELESS"}`)); wantOK(res, body) != nil {
				t.Fatal(wantOK(res, body))
			}
		}
		s.eventuallyQuery(10*time.Second, "SELECT count(), uniqExact(id), any(length(id)), any(startsWith(id, 'h-')) FROM flow.records WHERE intent = 'NAMELESS'", "2\t1\t34\t1")
	})
}

func text(v any) string {
	switch v := v.(type) {
	case nil:
		return "NULL"
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return fmt.Sprint(v)
}

// everyRefusalOfARecord: what cannot be stored is refused at the door, by status,
// code and place, and nothing of the request is stored.
func everyRefusalOfARecord(t *testing.T, s *stack) {
	before := s.counted()
	for _, tt := range []struct {
		name, body string
		status     int
		want       []string
	}{
		{"a fraction for an integer", `{"key":1.5}`, 422, []string{`"#/key"`}},
		{"an integer beyond 64 bits", `[{"key":1},{"key":9223372036854775808}]`, 422, []string{`"#/1/key"`, `"index":1`}},
		{"text that is no number", `{"value":{"retries":"three"}}`, 422, []string{`"#/value/retries"`}},
		{"a boolean for an integer", `{"value":{"deadline":true}}`, 422, []string{`"#/value/deadline"`}},
		{"an object for text", `{"value":{"worker":{}}}`, 422, []string{`"#/value/worker"`}},
		{"a value that is no object", `{"value":[]}`, 422, []string{`"#/value"`}},
		{"several things at once", `[{"key":true},{"id":[]}]`, 422, []string{`"#/0/key"`, `"#/1/id"`}},
		{"a record in a wrapper", `{"records":[{"key":true}]}`, 422, []string{`"#/records/0/key"`}},
		{"no more than a hundred problems are told", "[" + strings.TrimSuffix(strings.Repeat(`{"key":true},`, 150), ",") + "]", 422, []string{`"#/99/key"`}},
		{"white space alone", " \n ", 400, []string{"empty_body"}},
		{"JSON that ends early", `{"id":`, 400, []string{"invalid_json"}},
		{"a control byte in text", "{\"id\":\"a\x00b\"}", 400, []string{"invalid_json"}},
		{"bytes that are not UTF-8", "{\"id\":\"\xff\xfe\"}", 400, []string{"invalid_utf8"}},
		{"too many records", "[" + strings.TrimSuffix(strings.Repeat("{},", 50_001), ",") + "]", 413, []string{"too_many_records"}},
		{"a record that is too long", `{"id":"` + strings.Repeat("x", 8<<20) + `"}`, 413, []string{"record_too_large"}},
		{"a body that is too long", `{"id":"` + strings.Repeat("x", 16<<20) + `"}`, 413, []string{"body_too_large"}},
		{"nesting that is too deep", `{"value":{"variables":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}}`, 422, []string{"too_deep"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res, body := s.post([]byte(tt.body))
			if res.StatusCode != tt.status || res.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("answered %s (%s), want %d as a problem: %.300s", res.Status, res.Header.Get("Content-Type"), tt.status, body)
			}
			for _, want := range tt.want {
				if err := wantText(body, want); err != nil {
					t.Error(err)
				}
			}
			if n := strings.Count(body, `"pointer"`); n > 100 {
				t.Errorf("%d problems are told, want at most 100", n)
			}
		})
	}
	for _, body := range []string{"[]", `{"records":[]}`} {
		if res, answer := s.post([]byte(body)); wantOK(res, answer) != nil {
			t.Errorf("%s: %v", body, wantOK(res, answer))
		}
	}
	s.leavesOne("last", before)
}
