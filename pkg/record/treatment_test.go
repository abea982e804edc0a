package record_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/fatal"
	"sluice/pkg/record"
	"sluice/pkg/record/recordtest"
)

// row is the part of a row a case is about.
type row map[string]any

// Every row of the table of treatment, as the api and the ingester see it.
func TestTreatmentOfValues(t *testing.T) {
	stored := []struct {
		name, record string
		want         row
	}{
		{"unknown members are kept as they were sent, those of the record apart",
			`{"agent": "8.5.2","value":{"timeout":-1,"x":1.10,"y":[1, 2],"z":"\ud800"}}`,
			row{"extra": `{"timeout":-1,"x":1.10,"y":[1, 2],"z":"\ud800","_record":{"agent": "8.5.2"}}`}},
		{"a member called _record is not confused with those of the record",
			`{"a":1,"value":{"_record":2,"__record":3,"_recorder":4}}`,
			row{"extra": `{"__record":2,"___record":3,"_recorder":4,"_record":{"a":1}}`}},
		{"nothing unknown leaves extra empty", `{"id":"1-2","value":{"worker":"w"}}`, row{"extra": ""}},
		{"a missing number is NULL, a missing string is empty, missing JSON is {}", `{"id":"a"}`,
			row{"retries": nil, "deadline": nil, "version": nil, "process_definition_key": nil, "element_instance_key": nil,
				"worker": "", "process_instance_key": "", "error_message": "", "variables": "{}", "custom_headers": "{}", "key": int64(0)}},
		{"null is the same as missing",
			`{"id":"a","key":null,"intent":null,"timestamp":null,"value":{"retries":null,"worker":null,"variables":null,"customHeaders":null,"tenantId":null,"version":null}}`,
			row{"retries": nil, "worker": "", "intent": "", "variables": "{}", "custom_headers": "{}", "key": int64(0), "version": nil, "extra": ""}},
		{"a null value is the same as none", `{"id":"a","value":null}`, row{"retries": nil, "variables": "{}", "extra": ""}},
		{"integers keep all of their 64 bits",
			`{"key":9007199254740993,"value":{"elementInstanceKey":9223372036854775807,"processDefinitionKey":-9223372036854775808}}`,
			row{"key": int64(9007199254740993), "element_instance_key": int64(9223372036854775807), "process_definition_key": int64(-9223372036854775808)}},
		{"integers with an empty fraction or an exponent are exact", `{"key":5.0,"value":{"retries":1e3,"processDefinitionVersion":1200e-2}}`,
			row{"key": int64(5), "retries": int64(1000), "version": int64(12)}},
		{"integers may be decimal strings", `{"key":"9007199254740993","value":{"retries":"-1","deadline":"1763701501500"}}`,
			row{"key": int64(9007199254740993), "retries": int64(-1), "deadline": int64(1763701501500)}},
		{"numbers where a string is declared keep their text", `{"id":7,"value":{"processInstanceKey":2251799813685290,"worker":1.50}}`,
			row{"id": "7", "process_instance_key": "2251799813685290", "worker": "1.50"}},
		{"a process instance key need not be a number", `{"value":{"processInstanceKey":"order/17-\u00e4"}}`, row{"process_instance_key": "order/17-ä"}},
		{"a timestamp in ms is stored", `{"timestamp":1763701200123}`, row{"ts": int64(1763701200123), "extra": ""}},
		{"a timestamp of 0 is not believed", `{"timestamp":0}`, row{"ts": int64(0), "extra": `{"_record":{"timestamp":0}}`}},
		{"a timestamp in seconds is not believed", `{"timestamp":1763701200}`, row{"ts": int64(0), "extra": `{"_record":{"timestamp":1763701200}}`}},
		{"a timestamp in microseconds is not believed", `{"timestamp":"1763701200000000"}`, row{"ts": int64(0), "extra": `{"_record":{"timestamp":"1763701200000000"}}`}},
		{"a timestamp before 2000 is not believed", `{"timestamp":946684799999}`, row{"ts": int64(0), "extra": `{"_record":{"timestamp":946684799999}}`}},
		{"the first moment of 2000 is believed", `{"timestamp":946684800000}`, row{"ts": int64(946684800000)}},
		{"the last moment of 2099 is believed, whenever it comes in", `{"timestamp":4102444799999}`, row{"ts": int64(4102444799999), "extra": ""}},
		{"a timestamp of 2100 is not believed", `{"timestamp":4102444800000}`, row{"ts": int64(0), "extra": `{"_record":{"timestamp":4102444800000}}`}},
		{"a missing timestamp is 0 and leaves nothing in extra", `{"id":"a"}`, row{"ts": int64(0), "extra": ""}},
		{"ISO 8601 times become ms", `{"timestamp":"2025-11-21T06:00:00.123+01:00","value":{"deadline":"2025-11-21T06:05:00Z"}}`,
			row{"ts": int64(1763701200123), "deadline": int64(1763705100000)}},
		{"an ISO 8601 time that is absurd stays as it was sent", `{"timestamp":"1970-01-01T00:00:00Z"}`, row{"ts": int64(0), "extra": `{"_record":{"timestamp":"1970-01-01T00:00:00Z"}}`}},
		{"a deadline and retries of -1 are stored as sent", `{"value":{"deadline":-1,"retries":-1}}`, row{"deadline": int64(-1), "retries": int64(-1)}},
		{"variables and custom headers of any type keep their text", `{"value":{"variables":"a\u0041","customHeaders":[1, {"b":2.0}]}}`,
			row{"variables": `"a\u0041"`, "custom_headers": `[1, {"b":2.0}]`}},
		{"of duplicate members the last one counts", `{"key":1,"key":"2","value":{"worker":"a"},"value":{"type":"b"}}`, row{"key": int64(2), "worker": "", "job_type": "b"}},
		{"a member is known by its name, however it is escaped", `{"\u006bey":3}`, row{"key": int64(3), "extra": ""}},
		{"names count as they are written, upper and lower case", `{"Key":3}`, row{"key": int64(0), "extra": `{"_record":{"Key":3}}`}},
		{"NUL is stored as it was sent", `{"id":"a\u0000b"}`, row{"id": "a\x00b"}},
		{"half a surrogate pair becomes U+FFFD in a column", `{"value":{"worker":"\ud800x"}}`, row{"worker": "\ufffdx"}},
		{"a surrogate pair is one character", `{"value":{"worker":"\ud83d\ude00"}}`, row{"worker": "😀"}},
		{"partition and position come from their members", `{"id":"3-4","partitionId":1,"position":"7"}`, row{"partition_id": int64(1), "position": int64(7), "extra": ""}},
		{"partition and position come from the id when they are missing", `{"id":"4-12"}`, row{"partition_id": int64(4), "position": int64(12)}},
		{"an id of another form tells no partition", `{"id":"a-12"}`, row{"partition_id": int64(0), "position": int64(0)}},
		{"a partition that is no number stays in extra", `{"id":"4-12","partitionId":"x"}`, row{"partition_id": int64(4), "extra": `{"_record":{"partitionId":"x"}}`}},
		{"tenant, element type and error type have columns", `{"value":{"tenantId":"<default>","bpmnElementType":"SERVICE_TASK","errorType":"IO"}}`,
			row{"tenant_id": "<default>", "bpmn_element_type": "SERVICE_TASK", "error_type": "IO", "extra": ""}},
		{"a tenant that is no string stays in extra", `{"value":{"tenantId":{"a":1}}}`, row{"tenant_id": "", "extra": `{"tenantId":{"a":1}}`}},
		{"the root of all calls has a column", `{"value":{"rootProcessInstanceKey":"2251799813685290","x":1}}`,
			row{"root_process_instance_key": int64(2251799813685290), "extra": `{"x":1}`}},
		{"a root that is no number stays in extra", `{"value":{"rootProcessInstanceKey":"a"}}`, row{"root_process_instance_key": nil, "extra": `{"rootProcessInstanceKey":"a"}`}},
		{"version is another name of processDefinitionVersion", `{"value":{"version":3}}`, row{"version": int64(3), "extra": ""}},
		{"version beside processDefinitionVersion stays in extra", `{"value":{"version":3,"processDefinitionVersion":4}}`, row{"version": int64(4), "extra": `{"version":3}`}},
		{"targetElementId is another name of elementId", `{"value":{"targetElementId":"Event_wait"}}`, row{"element_id": "Event_wait", "extra": ""}},
		{"targetElementId beside elementId stays in extra", `{"value":{"targetElementId":"a","elementId":"b"}}`, row{"element_id": "b", "extra": `{"targetElementId":"a"}`}},
		{"every field of the specification has its column",
			`{"id":"1-2","intent":"CREATED","key":3,"recordType":"EVENT","timestamp":1763701200123,"valueType":"JOB","value":{"bpmnProcessId":"p","customHeaders":{"config":null},"deadline":4,"elementId":"e","elementInstanceKey":5,"errorCode":"c","errorMessage":"m","processDefinitionKey":6,"processDefinitionVersion":7,"processInstanceKey":"8","retries":9,"type":"t","variables":{"v":1},"worker":"w"}}`,
			row{"id": "1-2", "intent": "CREATED", "key": int64(3), "record_type": "EVENT", "ts": int64(1763701200123), "value_type": "JOB", "bpmn_process_id": "p",
				"custom_headers": `{"config":null}`, "deadline": int64(4), "element_id": "e", "element_instance_key": int64(5), "error_code": "c", "error_message": "m",
				"process_definition_key": int64(6), "version": int64(7), "process_instance_key": "8", "retries": int64(9), "job_type": "t", "variables": `{"v":1}`, "worker": "w", "extra": ""}},
	}
	for _, test := range stored {
		t.Run(test.name, func(t *testing.T) {
			if err := new(record.Request).Parse([]byte(test.record), record.FormAuto, record.Limits{}); err != nil {
				t.Fatalf("the api refuses it: %v", err)
			}
			var c record.Columns
			if err := c.Append(message("[" + test.record + "]")); err != nil {
				t.Fatalf("the ingester refuses it: %v", err)
			}
			got, all := row{}, recordtest.RowOf(&c, 0)
			for column := range test.want {
				got[column] = all[column]
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTreatmentOfWrongTypes(t *testing.T) {
	refused := []struct{ name, record, pointer, code string }{
		{"an integer beyond 64 bits", `{"key":9223372036854775808}`, "#/key", record.CodeOutOfRange},
		{"a decimal string beyond 64 bits", `{"value":{"elementInstanceKey":"-9223372036854775809"}}`, "#/value/elementInstanceKey", record.CodeOutOfRange},
		{"a power beyond 64 bits", `{"key":1e400}`, "#/key", record.CodeOutOfRange},
		{"a fraction where an integer is declared", `{"value":{"retries":1.5}}`, "#/value/retries", record.CodeNotAnInteger},
		{"true where an integer is declared", `{"key":true}`, "#/key", record.CodeNotAnInteger},
		{"an object where an integer is declared", `{"value":{"processDefinitionKey":{}}}`, "#/value/processDefinitionKey", record.CodeNotAnInteger},
		{"text where an integer is declared", `{"value":{"processDefinitionVersion":"three"}}`, "#/value/processDefinitionVersion", record.CodeNotAnInteger},
		{"an empty string where an integer is declared", `{"key":""}`, "#/key", record.CodeNotAnInteger},
		{"20 digits in a string", `{"key":"00000000000000000001"}`, "#/key", record.CodeNotAnInteger},
		{"text where a time is declared", `{"timestamp":"soon"}`, "#/timestamp", record.CodeNotATime},
		{"a day that does not exist", `{"value":{"deadline":"2025-02-29T00:00:00Z"}}`, "#/value/deadline", record.CodeNotATime},
		{"a fraction of a millisecond", `{"timestamp":1763701200123.5}`, "#/timestamp", record.CodeNotATime},
		{"true where a string is declared", `{"id":true}`, "#/id", record.CodeNotAString},
		{"an array where a string is declared", `{"value":{"worker":[]}}`, "#/value/worker", record.CodeNotAString},
		{"an object where a string is declared", `{"value":{"processInstanceKey":{}}}`, "#/value/processInstanceKey", record.CodeNotAString},
		{"a value that is no object", `{"value":[]}`, "#/value", record.CodeNotAnObject},
		{"a record that is no object", `7`, "#", record.CodeNotAnObject},
	}
	for _, test := range refused {
		t.Run(test.name, func(t *testing.T) {
			err := new(record.Request).Parse([]byte(test.record), record.FormAuto, record.Limits{})
			var problems *record.ProblemsError
			if !errors.As(err, &problems) {
				t.Fatalf("got %v, want a *ProblemsError", err)
			}
			p := problems.Problems[0]
			if p.Index != 0 || p.Pointer != test.pointer || p.Code != test.code || p.Detail == "" {
				t.Errorf("got %+v, want %s at %s", p, test.code, test.pointer)
			}
			var c record.Columns
			var bad *record.BadRecordError
			if err := c.Append(message("[{}," + test.record + "]")); !errors.As(err, &bad) {
				t.Fatalf("the ingester: got %v, want a *BadRecordError", err)
			}
			if bad.Index != 1 || bad.Code != test.code || string(bad.Raw) != test.record || c.Rows() != 0 {
				t.Errorf("the ingester: got %+v with %d rows, want %s of record 1", bad, c.Rows(), test.code)
			}
		})
	}
}

func TestARecordWithoutAnIDIsKnownByWhatItSays(t *testing.T) {
	id := func(raw string) string {
		var c record.Columns
		fatal.If(t, c.Append(message("["+raw+"]")))
		return c.ID(0)
	}
	first := id(`{"key":1,"value":{"worker":"w","type":"t"}}`)
	if !strings.HasPrefix(first, "h-") || len(first) != 34 {
		t.Errorf("got %s, want h- and 32 digits", first)
	}
	for _, same := range []string{
		`{ "value":{"type":"t", "worker":"\u0077"} , "key":1}`, `{"id":"","key":1,"value":{"worker":"w","type":"t"}}`, `{"id":null,"key":1,"value":{"worker":"w","type":"t"}}`,
	} {
		if got := id(same); got != first {
			t.Errorf("%s: got %s, want %s", same, got, first)
		}
	}
	for _, other := range []string{`{"key":2,"value":{"worker":"w","type":"t"}}`, `{"key":1,"value":{"worker":"w"}}`, `{"key":1.0,"value":{"worker":"w","type":"t"}}`} {
		if got := id(other); got == first {
			t.Errorf("%s has the id of another record", other)
		}
	}
}

// oddBodies are seeds for the fuzzers, and cases of their own.
var oddBodies = []string{
	``, ` `, "\n", `[]`, `{}`, `[{}]`, `{"records":[]}`, `{"records":[{}],"value":null}`, `[[]]`, `[{},]`, `[,{}]`,
	`5`, `"a"`, `null`, `true`, `nul`, `[1,2]`, "{}\n{}", `{}{}`, `{} {"records":[{},{}]}`, `{} 7`, `[] {}`, `[]]`,
	`{"records":[[[[[[1]]]]]]}`, `{"records":[{"value":{"variables":{"a":[1]}}}]}`, `{"x":[[[[1]]]]}`, `{"x":[[[[[1]]]]]}`,
	`{"id":"\u0000"}`, `{"id":"\ud800"}`, `{"id":"\ud83d\ude00"}`, `{"id":"\ud800\ud800\udc00x"}`, "{\"id\":\"\xff\"}", "{\"id\":\"a\tb\"}",
	`{"id":"` + "\xe2\x82\xac" + `"}`, `{"\u006bey":5}`, `{"key":5,"key":"7"}`, `{"key":"x","key":1}`, `{"key":1,"key":"x"}`,
	`{"key":1.0}`, `{"key":1e3}`, `{"key":1.5}`, `{"key":-0}`, `{"key":1e-2}`, `{"key":100e-2}`, `{"key":1e400}`, `{"key":0e999999999999999999999}`,
	`{"key":9223372036854775807}`, `{"key":-9223372036854775808}`, `{"key":9223372036854775808}`, `{"key":"9223372036854775808"}`, `{"key":"-9223372036854775808"}`,
	`{"key":"00012"}`, `{"key":""}`, `{"key":"-"}`, `{"key":"+1"}`, `{"key":" 1"}`, `{"key":"12345678901234567890"}`, `{"key":true}`, `{"key":{}}`, `{"key":null}`, `{"key":"\u0031"}`,
	`{"key":01}`, `{"key":1.}`, `{"key":.5}`, `{"key":-}`, `{"key":1e}`, `{"key":123456789012345678}`, `{"key":1234567890123456789}`, `{"key":0.000000000000000000001e21}`,
	`{"timestamp":"2025-11-21T06:00:00Z"}`, `{"timestamp":"2025-11-21T06:00:00.123456+01:00"}`, `{"timestamp":"2025-11-21"}`, `{"timestamp":"2025-02-29"}`, `{"timestamp":"2025-11-21T06:00"}`, `{"timestamp":"2025-11-21 06:00:00,5-0130"}`, `{"timestamp":"2025-11-21T06:00:00+02"}`, `{"timestamp":"2025-11-21T24:00:00Z"}`, `{"timestamp":"2025-11-21T06:00:60Z"}`, `{"timestamp":"2025-11-21T06:00:00.Z"}`, `{"timestamp":"2025-11-21T06:00:00+2"}`,
	`{"timestamp":0}`, `{"timestamp":1763701200}`, `{"timestamp":1763701200000000}`, `{"timestamp":"1763701200000"}`, `{"timestamp":1763701200000.5}`, `{"timestamp":1.7637012e12}`, `{"timestamp":"soon"}`, `{"timestamp":9e99}`,
	`{"value":{"deadline":"2020-01-01T00:00:00.000+0000","retries":"-1"}}`, `{"value":[]}`, `{"value":"x"}`, `{"value":{"worker":"a"},"value":{"type":"b"}}`, `{"value":{"worker":"a"},"value":null}`, `{"value":{"worker":1},"value":3}`,
	`{"value":{"worker":1.50,"elementId":-7,"processInstanceKey":2251799813685290,"errorCode":false,"errorMessage":[]}}`,
	`{"value":{"version":3}}`, `{"value":{"version":3,"processDefinitionVersion":4}}`, `{"value":{"version":"x"}}`, `{"value":{"version":null,"processDefinitionVersion":null}}`, `{"value":{"version":3,"processDefinitionVersion":3}}`,
	`{"value":{"targetElementId":"a"}}`, `{"value":{"targetElementId":"a","elementId":"b"}}`, `{"value":{"targetElementId":"a","elementId":null}}`, `{"value":{"targetElementId":{}}}`, `{"value":{"targetElementId":"a","elementId":""}}`,
	`{"partitionId":1,"position":"7"}`, `{"partitionId":"x","position":{},"id":"3-4"}`, `{"partitionId":0,"id":"3-4"}`, `{"id":"3--4"}`, `{"id":"99999999999999999999-1"}`, `{"id":3}`, `{"id":""}`, `{"id":null}`, `{"id":"","key":1}`,
	`{"value":{"tenantId":{"a":1},"bpmnElementType":5,"errorType":[1]},"brokerVersion":"8.5","records":[1]}`,
	`{"value":{"_record":1,"__record":2,"_records":3,"\u005frecord":4},"_record":{"timestamp":1}}`,
	`{"value":{"variables":"text","customHeaders":[1, 2]}}`, `{"value":{"variables":null,"customHeaders":{ } }}`, `{"value":{"variables":{"a":"\ud800","b":1.10,"c":1e400}}}`,
	`{"value":{"x":"\ud800","y":1.10,"x":2}}`, ` { "id" : "a" , "value" : { "x" : [ 1 , 2 ] } } `,
	`{"a`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":"\`, `{"a":"\u12`, `{"a":"\x"}`, `{"a":tru}`, `[`, `[{`, `[{}`, `{"a" 1}`, `{a:1}`, `{"a":1 "b":2}`, "\xef\xbb\xbf{}",
}
