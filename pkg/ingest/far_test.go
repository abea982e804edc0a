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
