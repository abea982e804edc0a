package stream_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/pkg/benchtest"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/stream"
)

// BenchmarkPublish publishes posts of clients, each with one in flight, to a real server that
// syncs every commit. The server runs in this process: the figures include its CPU time and
// allocations.
func BenchmarkPublish(b *testing.B) {
	for _, load := range []struct{ records, clients int }{
		{500, 1}, {500, 8}, {500, 64}, {1, 1}, {1, 64}, {1, 256},
	} {
		b.Run(fmt.Sprintf("records=%d/clients=%d", load.records, load.clients), func(b *testing.B) {
			publish(b, load.records, load.clients)
		})
	}
}

func publish(b *testing.B, records, clients int) {
	subs, size := submissions(b, records)
	p := open(b, stream.Config{MaxBytes: 8 << 30}).publisher()
	var next atomic.Int64
	one := func(n int64) {
		sub := subs[int(n)%len(subs)]
		sub.ID = "bench-" + strconv.FormatInt(n, 10)
		ctx, cancel := context.WithTimeout(b.Context(), 20*time.Second)
		defer cancel()
		if _, err := p.Publish(ctx, &sub); err != nil {
			b.Error(err)
		}
	}
	one(next.Add(1))
	b.SetBytes(size)
	b.ReportAllocs()
	b.ResetTimer()
	before, last := benchtest.CPUTime(b), next.Load()+int64(b.N)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for n := next.Add(1); n <= last; n = next.Add(1) {
				one(n)
			}
		})
	}
	wg.Wait()
	benchtest.PerRecord(b, b.N*records, benchtest.CPUTime(b)-before)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "acks/s")
}

// submissions are posts of this many records, cut as the api cuts them; size is the JSON size of
// one post.
func submissions(b *testing.B, records int) (subs []flow.Submission, size int64) {
	bodies := benchtest.Batches(b, 20, records)
	for _, body := range bodies {
		size += int64(len(body))
		r := record.NewRequest()
		fatal.If(b, r.Parse(body, record.FormAuto, record.Limits{}))
		chunks, err := r.Cut(flow.DefaultChunkBytes, 1, nil)
		fatal.If(b, err)
		subs = append(subs, flow.Submission{
			Hash: record.Hash(body), Subject: "engine-a", Received: benchtest.Start, Records: flow.Chunks(chunks),
			TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		})
	}
	return subs, size / int64(len(bodies))
}
