package ingest_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

// distant is a warehouse with spare cores behind a slow line, and a lane read at one core's
// decoding rate. Costs are constants, spent in virtual time.
type distant struct {
	*flood
	answer time.Duration // latency of each of the two answers an insert waits for
	mu     sync.Mutex
	done   []uint64    // messages, as the position was moved
	when   []time.Time // when the position was moved
}

// CPU per row of an insert with all views (docs/decisions/0014-cost-of-the-table.md) and of
// decoding; and the time of a checkpoint.
const (
	perMessage   = 500    // records
	perBlock     = 50_000 // rows
	insertPerRow = 3300 * time.Nanosecond
	decodePerRow = 1500 * time.Nanosecond
	moveTime     = 5 * time.Millisecond
)

func (d *distant) Open(context.Context, int, uint64) (ingest.Reader, error) { return d, nil }

func (d *distant) Next(ctx context.Context) (flow.Entry, error) {
	time.Sleep(perMessage * decodePerRow)
	return d.flood.Next(ctx)
}

func (d *distant) Insert(_ context.Context, b record.Block) error {
	time.Sleep(2*d.answer + time.Duration(b.To-b.From)*insertPerRow)
	return nil
}

func (d *distant) CompareAndSwap(ctx context.Context, lane int, next flow.LaneState) (flow.LaneState, error) {
	time.Sleep(moveTime)
	d.mu.Lock()
	d.done, d.when = append(d.done, next.Done), append(d.when, time.Now())
	d.mu.Unlock()
	return d.flood.CompareAndSwap(ctx, lane, next)
}

// TestOneLaneFarFromItsWarehouse: with 50 ms more latency a lane stores over 250 000 records a
// second; serial inserts do not.
func TestOneLaneFarFromItsWarehouse(t *testing.T) {
	t.Parallel()
	var body strings.Builder
	for i := range perMessage {
		fmt.Fprintf(&body, `,{"partitionId":1,"position":%d,"timestamp":%d}`, i+1, noon)
	}
	rate := func(answer time.Duration, pieces int) (perSecond float64) {
		synctest.Test(t, func(t *testing.T) {
			d := &distant{flood: &flood{more: make(chan int), messages: []flow.Message{{
				Topic: "flow.0.record", Records: perMessage, Body: []byte("[" + body.String()[1:] + "]"),
			}}}, answer: answer}
			for n := range 1000 {
				d.sources = append(d.sources, fmt.Sprint("engine-", n))
			}
			i := ingest.New(ingest.Config{Owner: "a", Together: pieces, PieceBytes: 1},
				ingest.Deps{Leases: onlyLane{}, Lanes: d, States: d, Tables: d, Index: d, DeadLetters: deadLetters{}, Forgets: noForgets{}},
				slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- i.Run(ctx) }()
			d.more <- 700
			time.Sleep(time.Minute)
			stop()
			expect.NoError(t, <-ended)
			from, to := slices.IndexFunc(d.done, func(n uint64) bool { return n >= 200 }), len(d.done)-1
			if d.done[to] != 700 {
				t.Fatalf("%d messages are done", d.done[to])
			}
			for d.done[to] > 600 { // the last block is not full
				to--
			}
			perSecond = float64(d.done[to]-d.done[from]) * perMessage / d.when[to].Sub(d.when[from]).Seconds()
		})
		return perSecond
	}
	for _, answer := range []time.Duration{0, 50 * time.Millisecond} {
		one, two, four := rate(answer, 1), rate(answer, 2), rate(answer, 4)
		t.Logf("answers %v later: %.0f records/s with one insert at a time, %.0f with two at once, %.0f with four", answer, one, two, four)
		expect.Not(t, answer > 0 && (one >= 250_000 || two < 250_000), "want less than 250 000 with one and as many with two")
	}
}

// flood resends the same messages, each time from another source, and accepts every block.
type flood struct {
	messages []flow.Message
	sources  []string
	more     chan int // further messages that may be read
	waiting  int      // of them; owned by Next, as is seq
	seq      uint64
	ring     [4 * perBlock / perMessage][1]flow.Message // of the messages on their way
	state    flow.LaneState
}

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

func (f *flood) Visible(context.Context, record.Block) (least, most uint64, err error) {
	return 0, 0, nil
}
func (f *flood) PartsSince(context.Context, time.Time) (uint64, error) { return 0, nil }
func (f *flood) Reaggregate(context.Context, record.Block) error       { return nil }
func (f *flood) Clock(context.Context) (time.Time, error)              { return time.Now(), nil }
func (f *flood) Incarnations(context.Context, int, uint64) ([]flow.Incarnation, error) {
	return nil, nil
}

func (f *flood) Last(context.Context, int, uint64) (of, seq uint64, err error) { return 0, 0, nil }
func (f *flood) Marks(context.Context, int, uint64, []flow.SourceDay) (flow.Marks, error) {
	return flow.Marks{Rows: 1 << 60}, nil
}
func (f *flood) Known(_ context.Context, _ *record.Columns, rows []int, _ string, _ func(*flow.Identity)) error {
	if len(rows) > 10 { // allows false positives of the filter
		panic(fmt.Sprintf("%d new records are asked for", len(rows)))
	}
	return nil
}
func (f *flood) Inserting(context.Context, int) (bool, error) { return false, nil }
func (f *flood) StaleSourceDays(context.Context, int, uint64) ([]flow.SourceDay, error) {
	return nil, nil
}
