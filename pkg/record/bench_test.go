package record_test

import (
	"encoding/json"
	"fmt"
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

// batches runs a benchmark with requests of one record and of many.
func batches(b *testing.B, f func(b *testing.B, n int)) {
	for _, n := range []int{1, 500} {
		b.Run(fmt.Sprintf("records=%d", n), func(b *testing.B) { f(b, n) })
	}
}

func BenchmarkParse(b *testing.B) {
	batches(b, func(b *testing.B, n int) {
		body := recordtest.Realistic(n)
		perRecord(b, n, body, func() { parsed(b, body).Release() })
	})
}

func BenchmarkParts(b *testing.B) {
	batches(b, func(b *testing.B, n int) {
		body := recordtest.Realistic(n)
		r := parsed(b, body)
		var parts []record.Part
		perRecord(b, n, body, func() {
			var err error
			if parts, err = r.Parts(record.DefaultPartBytes, parts[:0]); err != nil {
				b.Fatal(err)
			}
		})
		b.ReportMetric(float64(len(parts[0].Body))/float64(n), "encoded-B/record")
	})
}

func BenchmarkAppend(b *testing.B) {
	batches(b, func(b *testing.B, n int) {
		body := recordtest.Realistic(n)
		parts, err := parsed(b, body).Parts(record.DefaultPartBytes, nil)
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
		for range 2 * 50_000 / n { // a block has been here before
			appendOne()
		}
		perRecord(b, n, body, appendOne)
	})
}

func parsed(b *testing.B, body []byte) *record.Request {
	r := record.NewRequest()
	if err := r.Parse(body, record.FormAuto, record.Limits{}, received); err != nil {
		b.Fatal(err)
	}
	return r
}

// BenchmarkValid is what encoding/json takes to say yes or no.
func BenchmarkValid(b *testing.B) {
	batches(b, func(b *testing.B, n int) {
		body := recordtest.Realistic(n)
		perRecord(b, n, body, func() {
			if !json.Valid(body) {
				b.Fatal("not valid")
			}
		})
	})
}
