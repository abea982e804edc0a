package record_test

import (
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/record"
)

func TestARecordWithoutAnIDIsIdentifiedByItsContent(t *testing.T) {
	id := func(raw string) string {
		var c record.Columns
		fatal.If(t, c.Append(message("["+raw+"]")))
		return c.ID(0)
	}
	first := id(`{"key":1,"value":{"worker":"w","type":"t"}}`)
	expect.Not(t, !strings.HasPrefix(first, "h-") || len(first) != 34, "got %s, want h- and 32 digits", first)
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
	`{"agent": "8.5.2","value":{"timeout":-1,"x":1.10,"y":[1, 2],"z":"\ud800"}}`, `{"a":1,"value":{"_record":2,"__record":3,"_recorder":4}}`, `{"id":"1-2","value":{"worker":"w"}}`, `{"id":"a"}`, `{"id":"a","key":null,"intent":null,"timestamp":null,"value":{"retries":null,"worker":null,"variables":null,"customHeaders":null,"tenantId":null,"version":null}}`, `{"id":"a","value":null}`,
	`{"key":9007199254740993,"value":{"elementInstanceKey":9223372036854775807,"processDefinitionKey":-9223372036854775808}}`, `{"key":5.0,"value":{"retries":1e3,"processDefinitionVersion":1200e-2}}`, `{"key":"9007199254740993","value":{"retries":"-1","deadline":"1763701501500"}}`, `{"id":7,"value":{"processInstanceKey":2251799813685290,"worker":1.50}}`,
	`{"value":{"processInstanceKey":"order/17-\u00e4"}}`, `{"timestamp":1763701200123}`, `{"timestamp":"1763701200000000"}`, `{"timestamp":946684799999}`, `{"timestamp":946684800000}`, `{"timestamp":4102444799999}`, `{"timestamp":4102444800000}`, `{"timestamp":"2025-11-21T06:00:00.123+01:00","value":{"deadline":"2025-11-21T06:05:00Z"}}`, `{"timestamp":"1970-01-01T00:00:00Z"}`,
	`{"value":{"deadline":-1,"retries":-1}}`, `{"value":{"variables":"a\u0041","customHeaders":[1, {"b":2.0}]}}`, `{"key":1,"key":"2","value":{"worker":"a"},"value":{"type":"b"}}`, `{"\u006bey":3}`, `{"Key":3}`, `{"id":"a\u0000b"}`, `{"value":{"worker":"\ud800x"}}`, `{"value":{"worker":"\ud83d\ude00"}}`, `{"id":"3-4","partitionId":1,"position":"7"}`, `{"id":"4-12"}`, `{"id":"a-12"}`,
	`{"id":"4-12","partitionId":"x"}`, `{"value":{"tenantId":"<default>","bpmnElementType":"SERVICE_TASK","errorType":"IO"}}`, `{"value":{"tenantId":{"a":1}}}`, `{"value":{"rootProcessInstanceKey":"2251799813685290","x":1}}`, `{"value":{"rootProcessInstanceKey":"a"}}`, `{"value":{"targetElementId":"Event_wait"}}`,
	`{"id":"1-2","intent":"CREATED","key":3,"recordType":"EVENT","timestamp":1763701200123,"valueType":"JOB","value":{"bpmnProcessId":"p","customHeaders":{"config":null},"deadline":4,"elementId":"e","elementInstanceKey":5,"errorCode":"c","errorMessage":"m","processDefinitionKey":6,"processDefinitionVersion":7,"processInstanceKey":"8","retries":9,"type":"t","variables":{"v":1},"worker":"w"}}`,
	`{"value":{"elementInstanceKey":"-9223372036854775809"}}`, `{"value":{"retries":1.5}}`, `{"value":{"processDefinitionKey":{}}}`, `{"value":{"processDefinitionVersion":"three"}}`, `{"key":"00000000000000000001"}`, `{"value":{"deadline":"2025-02-29T00:00:00Z"}}`, `{"timestamp":1763701200123.5}`, `{"id":true}`, `{"value":{"worker":[]}}`, `{"value":{"processInstanceKey":{}}}`,
	` {"id":"a"} `, `[{"id":"a"}, {"id":"b"}]`, ` [ ] `, `{"source":"x","records":[{"id":"a"},{"id":"b"}],"n":2}`, `{"records":[1],"value":{}}`, `{"records":[{}],"valueType":"JOB"}`, `{"records":{}}`, "{\"id\":\"a\"}\n{\"id\":\"b\"}\n",
	"{\"id\":\"a\"}\r\n\r\n{\"id\":\"b\"}", "{\"records\":[{\"id\":\"a\"}]}\n{\"id\":\"b\"}", "\n\n", `{"key":true,"value":{"retries":"x"}}`, `[{},{"key":true,"value":{"retries":"x"}}]`, `{"records":[{},{"key":true,"value":{"retries":"x"}}]}`, "{}\n{\"key\":true,\"value\":{\"retries\":\"x\"}}",
}
