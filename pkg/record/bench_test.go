package record_test

import (
	"encoding/json"
	"syscall"
	"testing"
	"time"

	"sluice/pkg/record"
	"sluice/pkg/record/recordtest"
)

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
	body := recordtest.Realistic(benchRecords)
	perRecord(b, benchRecords, body, func() {
		r := record.NewRequest()
		if err := r.Parse(body, record.FormAuto, record.Limits{}, received); err != nil {
			b.Fatal(err)
		}
		r.Release()
	})
}

func BenchmarkParts(b *testing.B) {
	body := recordtest.Realistic(benchRecords)
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
	body := recordtest.Realistic(benchRecords)
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
	body := recordtest.Realistic(benchRecords)
	perRecord(b, benchRecords, body, func() {
		if !json.Valid(body) {
			b.Fatal("not valid")
		}
	})
}
