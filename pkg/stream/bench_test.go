package stream_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/pkg/stream"
)

// BenchmarkPublish publishes from many clients at once, each waiting for its
// answer before the next, onto a server that syncs every commit.
func BenchmarkPublish(b *testing.B) {
	for _, size := range []int{300, 4 << 10, 16 << 10, 64 << 10, 512 << 10} {
		for _, clients := range []int{1, 8, 64, 256} {
			if size*clients > 64<<20 {
				continue
			}
			b.Run(fmt.Sprintf("%dB/%dclients", size, clients), func(b *testing.B) {
				w := open(b, stream.Config{MaxBytes: 8 << 30})
				p := w.publisher()
				body := submission("x", size)
				var next atomic.Int64
				var wg sync.WaitGroup
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				for range clients {
					wg.Go(func() {
						sub := *body
						for {
							n := next.Add(1)
							if n > int64(b.N) {
								return
							}
							sub.ID = fmt.Sprintf("bench-%d", n)
							ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
							if _, err := p.Publish(ctx, &sub); err != nil {
								b.Error(err)
							}
							cancel()
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "acks/s")
			})
		}
	}
}
