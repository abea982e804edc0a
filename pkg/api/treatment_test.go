package api_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// row is how a record that was posted arrives in a column.
type row struct{ column, want string }

// columnsOf decodes what was stored, as the ingester will.
func columnsOf(t *testing.T, d *door) map[string]string {
	t.Helper()
	stored := d.stream.stored()
	var c record.Columns
	err := c.Append(&flow.Message{
		Body: []byte("[" + strings.Join(stored, ",") + "]"), Records: len(stored), Received: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"id": c.ID(0), "key": fmt.Sprint(c.Key[0]), "ts": fmt.Sprint(c.TS[0]),
		"retries": null(c.Retries, 0), "deadline": null(c.Deadline, 0), "worker": string(c.Worker.Value(0)),
		"process_instance_key": string(c.ProcessInstanceKey.Value(0)), "variables": string(c.Variables.Value(0)),
		"custom_headers": string(c.CustomHeaders.Value(0)), "extra": string(c.Extra.Value(0)),
	}
}

func null(n record.NullInt64, i int) string {
	if n.Nulls[i] == 0 {
		return fmt.Sprint(n.Values[i])
	}
	return "NULL"
}

// TestTreatmentOfValues goes through the table of how values are treated, row
// by row: what is accepted arrives as the table says, what is not is refused
// with a pointer and stores nothing.
func TestTreatmentOfValues(t *testing.T) {
	accepted := []struct {
		name, body string
		want       []row
	}{
		{"unknown members are kept", `{"id":"1-1","partitionIdx":3,"value":{"jobColour":"BPMN"}}`, []row{{"extra", `{"jobColour":"BPMN","_record":{"partitionIdx":3}}`}}},
		{"missing members", `{"id":"1-1"}`, []row{{"key", "0"}, {"retries", "NULL"}, {"worker", ""}, {"variables", "{}"}, {"custom_headers", "{}"}}},
		{"null members", `{"id":"1-1","key":null,"value":{"retries":null,"worker":null,"variables":null,"customHeaders":null}}`, []row{{"key", "0"}, {"retries", "NULL"}, {"worker", ""}, {"extra", ""}}},
		{"value is null", `{"id":"1-1","value":null}`, []row{{"retries", "NULL"}}},
		{"an integer beyond 2^53", `{"id":"1-1","key":9007199254740993}`, []row{{"key", "9007199254740993"}}},
		{"the largest integer", `{"id":"1-1","key":9223372036854775807}`, []row{{"key", "9223372036854775807"}}},
		{"an integer written as 5.0", `{"id":"1-1","value":{"retries":5.0}}`, []row{{"retries", "5"}}},
		{"an integer written as 1e3", `{"id":"1-1","value":{"retries":1e3}}`, []row{{"retries", "1000"}}},
		{"an integer as text", `{"id":"1-1","key":"-9007199254740993"}`, []row{{"key", "-9007199254740993"}}},
		{"a number where text is declared", `{"id":17,"value":{"worker":1.50}}`, []row{{"id", "17"}, {"worker", "1.50"}}},
		{"processInstanceKey as a number", `{"id":"1-1","value":{"processInstanceKey":2251799813685290}}`, []row{{"process_instance_key", "2251799813685290"}}},
		{"processInstanceKey that is no number", `{"id":"1-1","value":{"processInstanceKey":"abc"}}`, []row{{"process_instance_key", "abc"}}},
		{"no timestamp", `{"id":"1-1"}`, []row{{"ts", "0"}}},
		{"timestamp 0", `{"id":"1-1","timestamp":0}`, []row{{"ts", "0"}, {"extra", `{"_record":{"timestamp":0}}`}}},
		{"timestamp in seconds", `{"id":"1-1","timestamp":1763701200}`, []row{{"ts", "0"}, {"extra", `{"_record":{"timestamp":1763701200}}`}}},
		{"timestamp in microseconds", `{"id":"1-1","timestamp":1763701200123456}`, []row{{"ts", "0"}, {"extra", `{"_record":{"timestamp":1763701200123456}}`}}},
		{"ISO 8601 times", `{"id":"1-1","timestamp":"2025-11-21T05:00:00.123Z","value":{"deadline":"2025-11-21T06:00:00+01:00"}}`, []row{{"ts", "1763701200123"}, {"deadline", "1763701200000"}}},
		{"times as text of milliseconds", `{"id":"1-1","timestamp":"1763701200123"}`, []row{{"ts", "1763701200123"}}},
		{"deadline and retries -1", `{"id":"1-1","value":{"deadline":-1,"retries":-1}}`, []row{{"deadline", "-1"}, {"retries", "-1"}}},
		{"variables of any type", `{"id":"1-1","value":{"variables":[1,{"a":null}],"customHeaders":"text"}}`, []row{{"variables", `[1,{"a":null}]`}, {"custom_headers", `"text"`}}},
		{"a member twice: the last counts", `{"id":"1-1","key":1,"key":2}`, []row{{"key", "2"}}},
		{"placeholder bodies of API tools", `{"id":"string","intent":"string","key":0,"recordType":"string","timestamp":0,"value":{"bpmnProcessId":"string","customHeaders":{"config":null},"deadline":0,"variables":null},"valueType":"string"}`, []row{{"id", "string"}, {"deadline", "0"}}},
	}
	for _, tt := range accepted {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(t, config())
			wantOK(t, d.post(tt.body))
			got := columnsOf(t, d)
			for _, r := range tt.want {
				if got[r.column] != r.want {
					t.Errorf("%s: got %q, want %q", r.column, got[r.column], r.want)
				}
			}
		})
	}
	t.Run("a record without an id gets one of its content", func(t *testing.T) {
		ids := map[string]bool{}
		for _, body := range []string{`{"key":1,"value":{"a":1,"b":2}}`, `{ "value":{"b":2,"a":1}, "key":1 }`, `{"id":"","key":1,"value":{"a":1,"b":2}}`} {
			d := newDoor(t, config())
			wantOK(t, d.post(body))
			ids[columnsOf(t, d)["id"]] = true
		}
		for id := range ids {
			if !strings.HasPrefix(id, "h-") || len(id) != 34 {
				t.Errorf("got %q, want h- and 32 hexadecimal digits", id)
			}
		}
	})
}

func TestValuesThatAreRefusedArePointedAt(t *testing.T) {
	tests := []struct {
		name, body string
		want       []record.Problem // without details
	}{
		{"an integer beyond 64 bits", `{"key":9223372036854775808}`, []record.Problem{{Index: 0, Pointer: "#/key", Code: "out_of_range"}}},
		{"a fraction", `[{"id":"1-1"},{"value":{"retries":1.5}}]`, []record.Problem{{Index: 1, Pointer: "#/1/value/retries", Code: "not_an_integer"}}},
		{"a boolean for an integer", `{"records":[{"key":true}]}`, []record.Problem{{Index: 0, Pointer: "#/records/0/key", Code: "not_an_integer"}}},
		{"an object for an integer", `[{"key":{}}]`, []record.Problem{{Index: 0, Pointer: "#/0/key", Code: "not_an_integer"}}},
		{"text that is no integer", `[{"value":{"elementInstanceKey":"swordfish"}}]`, []record.Problem{{Index: 0, Pointer: "#/0/value/elementInstanceKey", Code: "not_an_integer"}}},
		{"a boolean for text", `[{"intent":false}]`, []record.Problem{{Index: 0, Pointer: "#/0/intent", Code: "not_a_string"}}},
		{"a timestamp that is no time", `[{"id":"1-1","timestamp":"swordfish"}]`, []record.Problem{{Index: 0, Pointer: "#/0/timestamp", Code: "not_a_time"}}},
		{"an object that is no record", `[{"id":"1-1"},{}]`, []record.Problem{{Index: 1, Pointer: "#/1/valueType", Code: "missing"}}},
		{"a hit of a search server", `{"_index":"i","_source":{"id":"swordfish"}}`, []record.Problem{{Index: 0, Pointer: "#/valueType", Code: "missing"}}},
		{"a record that is a string", `["swordfish"]`, []record.Problem{{Index: 0, Pointer: "#/0", Code: "not_an_object"}}},
		{"a value that is an array", `[{"value":[]}]`, []record.Problem{{Index: 0, Pointer: "#/0/value", Code: "not_an_object"}}},
		{"several", "{\"key\":false}\n{\"id\":\"1-1\"}\n{\"intent\":[],\"value\":7}", []record.Problem{
			{Index: 0, Pointer: "#/0/key", Code: "not_an_integer"},
			{Index: 2, Pointer: "#/2/intent", Code: "not_a_string"},
			{Index: 2, Pointer: "#/2/value", Code: "not_an_object"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(t, config())
			resp := d.post(tt.body)
			p := wantProblem(t, resp, 422, "invalid_records")
			for i, e := range p.Errors {
				if e.Detail == "" || strings.Contains(e.Detail, "swordfish") {
					t.Errorf("detail %q is empty or quotes a value", e.Detail)
				}
				p.Errors[i].Detail = ""
			}
			if diff := cmp.Diff(tt.want, p.Errors); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
			if len(d.stream.subs) != 0 {
				t.Error("something was published")
			}
		})
	}
	t.Run("at most 100 are listed", func(t *testing.T) {
		p := wantProblem(t, newDoor(t, config()).post("["+strings.Repeat(`{"key":true},`, 249)+`{"key":true}]`), 422, "invalid_records")
		if len(p.Errors) != 100 || p.Total != 250 {
			t.Errorf("got %d errors of %d, want 100 of 250", len(p.Errors), p.Total)
		}
	})
}
