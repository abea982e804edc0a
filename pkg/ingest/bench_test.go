package ingest_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/benchtest"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/load"
	"sluice/pkg/record"
)

const (
	perMessage = 500
	perBlock   = 50_000
)

// BenchmarkLane measures the ingester alone: an operation is a block of 50 000 records, 500 to a
// message. The warehouse takes no time. All records are new: by position, in order or interleaved
// over 16 connections, or by id alone.
func BenchmarkLane(b *testing.B) {
	b.Run("positions", func(b *testing.B) {
		benchmarkLane(b, benchtest.BatchesOf(b, load.FullEnvelope, perBlock/perMessage, perMessage))
	})
	b.Run("jumbled", func(b *testing.B) {
		bodies := benchtest.BatchesOf(b, load.FullEnvelope, perBlock/perMessage, perMessage)
		r := rand.New(rand.NewPCG(1, 1))
		for some := range slices.Chunk(bodies, 16) {
			r.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
		}
		benchmarkLane(b, bodies)
	})
	b.Run("ids", func(b *testing.B) {
		benchmarkLane(b, benchtest.BatchesOf(b, load.SlimEnvelope, perBlock/perMessage, perMessage))
	})
}

func benchmarkLane(b *testing.B, bodies [][]byte) {
	f := &flood{more: make(chan int), stored: make(chan struct{})}
	size := 0
	for _, body := range bodies {
		size += len(body)
		r := record.NewRequest()
		fatal.If(b, r.Parse(body, record.FormAuto, record.Limits{}))
		chunks, err := r.Cut(flow.DefaultChunkBytes, 1, nil)
		fatal.If(b, err)
		for _, c := range chunks {
			f.messages = append(f.messages, flow.Message{Topic: "flow.0.record", Received: benchtest.Start, Records: c.Records, Body: c.Body, Encoding: c.Encoding})
		}
	}
	for n := range 10_000 {
		f.sources = append(f.sources, fmt.Sprint("engine-", n))
	}
	i := ingest.New(
		ingest.Config{Owner: "bench", MaxRows: perBlock, MaxBytes: 1 << 30, MaxAge: time.Hour, MinPause: time.Hour, Together: 1}, // only full blocks, each one insert
		ingest.Deps{Leases: onlyLane{}, Lanes: f, States: f, Tables: f, Index: f, DeadLetters: deadLetters{}, Forgets: noForgets{}},
		slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- i.Run(ctx) }()

	f.more <- 1 // the first block does not wait until it is full
	<-f.stored
	block := func() { f.more <- len(f.messages); <-f.stored }
	for range 4 { // both buffers of the lane are grown
		block()
	}
	b.SetBytes(int64(size))
	benchtest.Loop(b, perBlock, block)
	stop()
	fatal.If(b, <-ended)
}

// flood resends the same messages, each time from another source, and accepts every block.
type flood struct {
	messages []flow.Message
	sources  []string
	more     chan int // further messages that may be read
	waiting  int      // of them; owned by Next, as is seq
	seq      uint64
	ring     [4 * perBlock / perMessage][1]flow.Message // of the messages on their way
	stored   chan struct{}                              // a block is
	state    flow.LaneState
}

func (f *flood) Open(context.Context, int, uint64) (ingest.Reader, error)   { return f, nil }
func (f *flood) OpenChanges(context.Context, uint64) (ingest.Reader, error) { return f, nil }
func (f *flood) StreamID() string                                           { return "FLOW_0@1" }
func (f *flood) Created() time.Time                                         { return time.UnixMilli(1) }
func (f *flood) Close()                                                     {}

func (f *flood) Heads(context.Context, int, uint64, uint64, func(*flow.Entry) error) error {
	return nil
}

func (f *flood) Revision(context.Context, string) (uint64, error) { return 0, nil }

func (f *flood) Next(ctx context.Context) (flow.Entry, error) {
	for f.waiting == 0 {
		select {
		case f.waiting = <-f.more:
		case <-ctx.Done():
			return flow.Entry{}, ctx.Err()
		}
	}
	one := f.ring[f.seq%uint64(len(f.ring))][:]
	one[0] = f.messages[f.seq%uint64(len(f.messages))]
	m := &one[0]
	m.Source = f.sources[f.seq/uint64(len(f.messages))%uint64(len(f.sources))]
	f.waiting--
	f.seq++
	m.Seq = f.seq
	return flow.Entry{Seq: m.Seq, Topic: m.Topic, Body: m.Body, Messages: one}, nil
}

func (f *flood) Read(context.Context, int) (flow.LaneState, error) { return f.state, nil }

func (f *flood) CompareAndSwap(_ context.Context, _ int, next flow.LaneState) (flow.LaneState, error) {
	next.Revision++
	f.state = next
	return next, nil
}

func (f *flood) Insert(ctx context.Context, b record.Block) error {
	if n := b.Columns.Rows(); n != perBlock && b.Columns.StreamSeq[0] > 1 {
		panic(fmt.Sprintf("got a block of %d records, want %d", n, perBlock))
	}
	select {
	case f.stored <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *flood) Visible(context.Context, record.Block, time.Time) (rows, parts uint64, err error) {
	return 0, 0, nil
}
func (f *flood) Reaggregate(context.Context, record.Block) error { return nil }
func (f *flood) Clock(context.Context) (time.Time, error)        { return time.Now(), nil }
func (f *flood) Incarnations(context.Context, int, uint64) ([]flow.Incarnation, error) {
	return nil, nil
}

func (f *flood) Last(context.Context, int, uint64) (of, seq uint64, err error) { return 0, 0, nil }
func (f *flood) Marks(context.Context, int, uint64, []flow.SourceDay) (flow.Marks, error) {
	return flow.Marks{Rows: 1 << 60}, nil
}
func (f *flood) Known(_ context.Context, _ *record.Columns, rows []int, _ func(*flow.Identity)) error {
	if len(rows) > 10 { // allows false positives of the filter
		panic(fmt.Sprintf("%d new records are asked for", len(rows)))
	}
	return nil
}
func (f *flood) StaleSourceDays(context.Context, int, uint64) ([]flow.SourceDay, error) {
	return nil, nil
}
