package record_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/pkg/record"
)

// realistic returns an array of n records as an engine sends them, 620 to 720
// bytes each: jobs and elements of many instances of a few processes.
func realistic(n int) []byte {
	const job = `{"id":"1-%d","partitionId":1,"position":%d,"key":%d,"recordType":"EVENT","valueType":"JOB","intent":"%s","timestamp":%d,"value":{"bpmnProcessId":"%s","processDefinitionKey":%d,"processDefinitionVersion":3,"processInstanceKey":"%d","elementId":"Activity_%d","elementInstanceKey":%d,"type":"payment.charge","worker":"worker-%d","retries":3,"deadline":%d,"errorCode":"","errorMessage":"","customHeaders":{"config":"{\"nodeId\":\"Activity_%d\",\"url\":\"http://svc/api\"}"},"variables":{"approved":true,"amount":%d.5,"note":null,"tags":["a","b"]},"tenantId":"<default>","timeout":-1}}`
	const element = `{"id":"1-%d","partitionId":1,"position":%d,"sourceRecordPosition":7560,"brokerVersion":"8.5.2","recordVersion":1,"rejectionType":"NULL_VAL","rejectionReason":"","authorizations":{"authorized_tenants":["<default>"]},"key":%d,"recordType":"EVENT","valueType":"PROCESS_INSTANCE","intent":"%s","timestamp":%d,"value":{"bpmnProcessId":"%s","version":3,"processDefinitionKey":%d,"processInstanceKey":%d,"elementId":"Activity_%d","flowScopeKey":2251799813685290,"bpmnElementType":"SERVICE_TASK","bpmnEventType":"UNSPECIFIED","parentProcessInstanceKey":-1,"parentElementInstanceKey":-1,"tenantId":"<default>"}}`
	records := make([]string, n)
	for i := range records {
		process, instance := fmt.Sprintf("order-fulfillment-%d", i/7%12), 2251799813685249+i/20*7
		key, at := 2251799813700000+i, 1763701200123+i*3
		if i%2 == 0 {
			intent := []string{"CREATED", "COMPLETED"}[i/2%2]
			records[i] = fmt.Sprintf(job, i, i, key, intent, at, process, 2251799813685249+i/7%12, instance, i%20, key, i%5, at+300000, i%20, i%1000)
		} else {
			intent := []string{"ELEMENT_ACTIVATED", "ELEMENT_COMPLETED"}[i/2%2]
			records[i] = fmt.Sprintf(element, i, i, key, intent, at, process, 2251799813685249+i/7%12, instance, i%20)
		}
	}
	return []byte("[" + strings.Join(records, ",") + "]")
}

// perRecord measures f, which handles a body of n records. The processor time
// is what counts: it hardly depends on who else uses the machine.
func perRecord(b *testing.B, n int, body []byte, f func()) {
	b.Helper()
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuTime(b)
	for range b.N {
		f()
	}
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N*n), "cpu-ns/record")
	b.ReportMetric(float64(len(body))/float64(n), "B/record")
}

// cpuTime returns the processor time this process has used.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

const benchRecords = 500

func BenchmarkParse(b *testing.B) {
	body := realistic(benchRecords)
	perRecord(b, benchRecords, body, func() {
		r := record.NewRequest()
		if err := r.Parse(body, record.FormAuto, record.Limits{}, received); err != nil {
			b.Fatal(err)
		}
		r.Release()
	})
}

func BenchmarkParts(b *testing.B) {
	body := realistic(benchRecords)
	var parts []record.Part
	r := record.NewRequest()
	if err := r.Parse(body, record.FormAuto, record.Limits{}, received); err != nil {
		b.Fatal(err)
	}
	encoded := 0
	perRecord(b, benchRecords, body, func() {
		var err error
		if parts, err = r.Parts(record.DefaultPartBytes, parts[:0]); err != nil {
			b.Fatal(err)
		}
		encoded = len(parts[0].Body)
	})
	b.ReportMetric(float64(encoded)/benchRecords, "encoded-B/record")
}

func BenchmarkAppend(b *testing.B) {
	body := realistic(benchRecords)
	r := record.NewRequest()
	if err := r.Parse(body, record.FormAuto, record.Limits{}, received); err != nil {
		b.Fatal(err)
	}
	parts, err := r.Parts(record.DefaultPartBytes, nil)
	if err != nil {
		b.Fatal(err)
	}
	m := &record.Message{Seq: 7, Body: parts[0].Body, Encoding: parts[0].Encoding, Received: received}
	var c record.Columns
	appendOne := func() {
		if c.Rows() >= 50_000 {
			c.Reset()
		}
		if err := c.Append(m); err != nil {
			b.Fatal(err)
		}
	}
	for range 2 * 50_000 / benchRecords { // a block has been here before
		appendOne()
	}
	perRecord(b, benchRecords, body, appendOne)
}

// BenchmarkValid is what encoding/json takes to say yes or no.
func BenchmarkValid(b *testing.B) {
	body := realistic(benchRecords)
	perRecord(b, benchRecords, body, func() {
		if !json.Valid(body) {
			b.Fatal("not valid")
		}
	})
}
