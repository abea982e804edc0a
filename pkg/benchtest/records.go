package benchtest

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"sluice/pkg/fatal"
	"sluice/pkg/load"
)

// Start is the time of the records; all of them follow it closely.
var Start = time.UnixMilli(1_763_701_200_000)

// started is how many records it takes until many process instances are under way.
const started = 5_000

// Batches returns bodies with n records each, as JSON arrays. They are the same
// at every call.
func Batches(b *testing.B, bodies, n int) [][]byte {
	b.Helper()
	return BatchesOf(b, load.MixedEnvelopes, bodies, n)
}

// BatchesOf is Batches of records that say this about themselves.
func BatchesOf(b *testing.B, envelope load.Envelope, bodies, n int) [][]byte {
	b.Helper()
	g := load.NewGenerator(load.GeneratorConfig{Seed: 5, Start: Start, Envelope: envelope})
	for range started {
		g.Next()
	}
	all := make([][]byte, bodies)
	for i := range all {
		all[i], _ = load.AppendBatch(nil, g, n)
	}
	return all
}

// Requests runs a benchmark with requests of one record and of many.
func Requests(b *testing.B, f func(b *testing.B, bodies [][]byte, records int)) {
	for _, records := range []int{1, 500} {
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			f(b, Batches(b, 50_000/max(records, 50), records), records)
		})
	}
}

// Records measures f, which handles the bodies, of the same number of records
// each, in turns; i says which. All of them are handled once before, so that
// what f keeps from one to the next is there.
func Records(b *testing.B, bodies [][]byte, records int, f func(i int)) {
	b.Helper()
	size := 0
	for i, body := range bodies {
		size += len(body)
		f(i)
	}
	b.SetBytes(int64(size / len(bodies)))
	i := 0
	Loop(b, records, func() { f(i % len(bodies)); i++ })
}

// Loop measures f, which handles so many records. Beside the usual figures it
// reports ns/record and cpu-ns/record, the processor time of the whole process,
// which hardly depends on who else uses the machine.
func Loop(b *testing.B, records int, f func()) {
	b.Helper()
	b.ReportAllocs()
	before := CPUTime(b)
	for b.Loop() {
		f()
	}
	PerRecord(b, b.N*records, CPUTime(b)-before)
}

// PerRecord reports what each of the records took, of which there were so many
// in all.
func PerRecord(b *testing.B, records int, cpu time.Duration) {
	b.ReportMetric(float64(cpu)/float64(records), "cpu-ns/record")
	b.ReportMetric(float64(b.Elapsed())/float64(records), "ns/record")
}

// CPUTime returns the processor time this process has used.
func CPUTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	fatal.If(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
