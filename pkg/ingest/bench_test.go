package ingest_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/ingest"
	"sluice/pkg/load"
	"sluice/pkg/record"
)

// BenchmarkLane moves generated records, 500 to a message, S2-compressed, from
// memory to a warehouse that takes no time: all that the ingester does itself.
func BenchmarkLane(b *testing.B) {
	g, err := load.NewGenerator(load.GeneratorConfig{Seed: 5, Start: time.Now()})
	if err != nil {
		b.Fatal(err)
	}
	const perMessage = 500
	messages := make([]record.Message, 400)
	for i := range messages {
		body, _, _ := g.AppendBatch(nil, perMessage)
		messages[i] = record.Message{
			Topic: "flow.0.record", Received: time.Now(), Records: perMessage,
			Body: s2.Encode(nil, body), Encoding: record.EncodingS2,
		}
	}
	f := &flood{messages: messages, last: uint64(max(b.N, 1)), all: make(chan struct{})}
	i := ingest.New(ingest.Config{}, ingest.Parts{Leases: lease{}, Source: f, Positions: f, Warehouse: f, DeadLetters: deadLetters{}},
		slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	b.ReportAllocs()
	b.ResetTimer()
	ended := make(chan error, 1)
	go func() { ended <- i.Run(ctx) }()
	<-f.all
	b.StopTimer()
	stop()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N*perMessage)/b.Elapsed().Seconds(), "records/s")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*perMessage), "ns/record")
}

// flood gives the same messages again and again, and takes every block.
type flood struct {
	messages []record.Message
	next     uint64
	last     uint64
	all      chan struct{} // closed when the last message is stored
	position record.Position
}

func (f *flood) Open(context.Context, int, uint64) (ingest.Reader, error) { return f, nil }
func (f *flood) Identity() string                                         { return "FLOW_0@1" }
func (f *flood) Close()                                                   {}

func (f *flood) Next(ctx context.Context) (record.Message, error) {
	if f.next == f.last {
		<-ctx.Done()
		return record.Message{}, ctx.Err()
	}
	m := f.messages[f.next%uint64(len(f.messages))]
	f.next++
	m.Seq = f.next
	return m, nil
}

func (f *flood) Read(context.Context, int) (record.Position, error) { return f.position, nil }

func (f *flood) Swap(_ context.Context, _ int, next record.Position) (record.Position, error) {
	next.Revision++
	f.position = next
	return next, nil
}

func (f *flood) Insert(_ context.Context, b record.Block) error {
	if b.Claim.Last == f.last {
		close(f.all)
	}
	return nil
}

func (f *flood) Stored(context.Context, record.Block) (uint64, error) { return 0, nil }
func (f *flood) LastSeq(context.Context, int) (uint64, error)         { return f.last, nil }
