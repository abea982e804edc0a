// Package peers measures what other JSON libraries take for the two things
// package record does: saying whether a body is JSON, and getting the typed
// fields out of every record. docs/decisions/0012-record-decoder.md tells why.
package peers

import (
	"encoding/json"
	"syscall"
	"testing"
	"time"

	"github.com/buger/jsonparser"
	"github.com/bytedance/sonic"
	goccy "github.com/goccy/go-json"
	"github.com/klauspost/compress/s2"
	"github.com/minio/simdjson-go"
	"github.com/valyala/fastjson"

	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/record/recordtest"
)

const records = 500

// posted is a record as a struct with the fields of the specification. Decoding
// into it loses unknown members and refuses keys sent as strings: less than
// what record does.
type posted struct {
	ID         string `json:"id"`
	Key        int64  `json:"key"`
	RecordType string `json:"recordType"`
	ValueType  string `json:"valueType"`
	Intent     string `json:"intent"`
	Timestamp  int64  `json:"timestamp"`
	Value      struct {
		BpmnProcessID            string          `json:"bpmnProcessId"`
		ProcessDefinitionKey     int64           `json:"processDefinitionKey"`
		ProcessDefinitionVersion int64           `json:"processDefinitionVersion"`
		ProcessInstanceKey       any             `json:"processInstanceKey"`
		ElementID                string          `json:"elementId"`
		ElementInstanceKey       int64           `json:"elementInstanceKey"`
		Type                     string          `json:"type"`
		Worker                   string          `json:"worker"`
		Retries                  int64           `json:"retries"`
		Deadline                 int64           `json:"deadline"`
		ErrorCode                string          `json:"errorCode"`
		ErrorMessage             string          `json:"errorMessage"`
		Variables                json.RawMessage `json:"variables"`
		CustomHeaders            json.RawMessage `json:"customHeaders"`
	} `json:"value"`
}

func BenchmarkValidate(b *testing.B) {
	body := recordtest.Realistic(records)
	var request record.Request
	var scanner fastjson.Parser
	var parsed *simdjson.ParsedJson
	run(b, body, "record.Parse, which also checks types", func() bool {
		return request.Parse(body, record.FormAuto, record.Limits{}) == nil
	})
	run(b, body, "encoding_json.Valid", func() bool { return json.Valid(body) })
	run(b, body, "sonic.Valid", func() bool { return sonic.Valid(body) })
	run(b, body, "goccy.Valid", func() bool { return goccy.Valid(body) })
	run(b, body, "fastjson.ValidateBytes", func() bool { return fastjson.ValidateBytes(body) == nil })
	run(b, body, "fastjson.ParseBytes", func() bool { _, err := scanner.ParseBytes(body); return err == nil })
	run(b, body, "simdjson.Parse", func() (ok bool) {
		var err error
		parsed, err = simdjson.Parse(body, parsed, simdjson.WithCopyStrings(false))
		return err == nil
	})
}

func BenchmarkDecode(b *testing.B) {
	body := recordtest.Realistic(records)
	message := &flow.Message{Body: s2.Encode(nil, body), Encoding: flow.EncodingS2, Received: time.Now()}
	var columns record.Columns
	run(b, body, "record.Append, from S2, with extra", func() bool {
		if columns.Rows() >= 50_000 {
			columns.Reset()
		}
		return columns.Append(message) == nil
	})
	run(b, body, "encoding_json.Unmarshal", func() bool { var p []posted; return json.Unmarshal(body, &p) == nil })
	run(b, body, "sonic.Unmarshal", func() bool { var p []posted; return sonic.ConfigFastest.Unmarshal(body, &p) == nil })
	run(b, body, "sonic.Unmarshal with validation", func() bool { var p []posted; return sonic.ConfigStd.Unmarshal(body, &p) == nil })
	run(b, body, "goccy.Unmarshal", func() bool { var p []posted; return goccy.Unmarshal(body, &p) == nil })
	var p fastjson.Parser
	run(b, body, "fastjson, 20 lookups", func() bool { return viaFastjson(&p, body) })
	run(b, body, "jsonparser.ObjectEach, without validation", func() bool { return viaJSONParser(body) })
}

func viaFastjson(p *fastjson.Parser, body []byte) bool {
	v, err := p.ParseBytes(body)
	if err != nil {
		return false
	}
	for _, r := range v.GetArray() {
		value := r.Get("value")
		for _, name := range []string{"id", "recordType", "valueType", "intent"} {
			r.GetStringBytes(name)
		}
		for _, name := range []string{"key", "timestamp"} {
			r.GetInt64(name)
		}
		for _, name := range []string{"bpmnProcessId", "elementId", "type", "worker", "errorCode", "errorMessage", "tenantId", "processInstanceKey"} {
			value.GetStringBytes(name)
		}
		for _, name := range []string{"processDefinitionKey", "processDefinitionVersion", "elementInstanceKey", "retries", "deadline"} {
			value.GetInt64(name)
		}
	}
	return true
}

func viaJSONParser(body []byte) bool {
	n := 0
	_, err := jsonparser.ArrayEach(body, func(raw []byte, _ jsonparser.ValueType, _ int, _ error) {
		_ = jsonparser.ObjectEach(raw, func(name, content []byte, _ jsonparser.ValueType, _ int) error {
			if string(name) == "value" {
				return jsonparser.ObjectEach(content, func(_, _ []byte, _ jsonparser.ValueType, _ int) error { n++; return nil })
			}
			n++
			return nil
		})
	})
	return err == nil && n > 0
}

// run reports the processor time f takes for a record, after a first run.
func run(b *testing.B, body []byte, name string, f func() bool) {
	b.Run(name, func(b *testing.B) {
		if !f() {
			b.Fatal("it does not take the body")
		}
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		b.ResetTimer()
		before := cpuTime(b)
		for range b.N {
			f()
		}
		b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N*records), "cpu-ns/record")
	})
}

func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
