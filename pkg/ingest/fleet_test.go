package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

// fleet is one ingester with several lanes, each with fakes of its own.
type fleet struct {
	t         *testing.T
	began     time.Time
	lanes     []*world
	processes []*process // of each lane
	cancel    context.CancelFunc
	ended     chan error
}

func newFleet(t *testing.T, lanes int) *fleet {
	f := &fleet{t: t, began: time.Now(), ended: make(chan error, 1)}
	for n := range lanes {
		w := newWorld()
		w.identity, w.created = fmt.Sprintf("FLOW_%d@1", n), 1
		f.lanes, f.processes = append(f.lanes, w), append(f.processes, &process{world: w, name: "a", crash: func() {}})
	}
	return f
}

func (f *fleet) start() {
	var ctx context.Context
	ctx, f.cancel = context.WithCancel(f.t.Context())
	i := ingest.New(ingest.Config{Owner: "a", KnownBytes: 1 << 16, RepeatBytes: 1 << 16}, ingest.Deps{
		Leases: allLanes(len(f.lanes)), Lanes: everySource{f}, States: everyState{f},
		Tables: everyTable{f}, Index: everyTable{f}, DeadLetters: noDeadLetters{}, Forgets: noForgets{},
	}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	go func() { f.ended <- i.Run(ctx) }()
}

func (f *fleet) end() {
	f.cancel()
	if err := <-f.ended; err != nil {
		f.t.Errorf("the ingester ended: %v", err)
	}
}

// settled requires every record once in the table and in its views.
func (f *fleet) settled() {
	for n, w := range f.lanes {
		if len(w.broken) > 0 {
			f.t.Errorf("lane %d: %s", n, w.broken[0])
		}
		if w.state.Done != uint64(len(w.messages)) || len(w.table) != len(w.messages) || len(w.view) != len(w.messages) {
			f.t.Errorf("lane %d: %d messages done, %d rows and %d in views of %d messages", n, w.state.Done, len(w.table), len(w.view), len(w.messages))
		}
		for at, times := range w.table {
			if times != 1 || w.view[at] != 1 {
				f.t.Errorf("lane %d: the record of message %d is stored %d times and counted %d times", n, at.Seq, times, w.view[at])
			}
		}
	}
}

// allLanes are the leases of this many lanes.
type allLanes int

func (n allLanes) Run(ctx context.Context, work func(context.Context, int) error) error {
	all, ctx := errgroup.WithContext(ctx)
	for lane := range int(n) {
		all.Go(func() error { return work(ctx, lane) })
	}
	return all.Wait()
}

func (allLanes) Others() bool { return false }

type (
	everySource struct{ *fleet }
	everyState  struct{ *fleet }
	everyTable  struct{ *fleet }
)

func (s everySource) Open(ctx context.Context, lane int, from uint64) (ingest.Reader, error) {
	return source{s.processes[lane]}.Open(ctx, lane, from)
}
func (s everySource) OpenChanges(ctx context.Context, from uint64) (ingest.Reader, error) {
	return source{s.processes[0]}.OpenChanges(ctx, from)
}
func (s everySource) Heads(ctx context.Context, lane int, from, to uint64, do func(*flow.Entry) error) error {
	return source{s.processes[lane]}.Heads(ctx, lane, from, to, do)
}

func (s everySource) Revision(ctx context.Context, name string) (uint64, error) {
	return source{s.processes[0]}.Revision(ctx, name)
}

func (s everyState) at(lane int) states { return states{s.processes[lane], &s.processes[lane].state} }
func (s everyState) Read(ctx context.Context, lane int) (flow.LaneState, error) {
	return s.at(lane).Read(ctx, lane)
}
func (s everyState) CompareAndSwap(ctx context.Context, lane int, next flow.LaneState) (flow.LaneState, error) {
	return s.at(lane).CompareAndSwap(ctx, lane, next)
}

func (s everyTable) of(lane int) tables { return tables{s.processes[lane]} }
func (s everyTable) ofRows(c *record.Columns) tables {
	if len(c.Lane) == 0 {
		return s.of(0)
	}
	return s.of(int(c.Lane[0]))
}
func (s everyTable) Insert(ctx context.Context, b record.Block) error {
	return s.ofRows(b.Columns).Insert(ctx, b)
}
func (s everyTable) Visible(ctx context.Context, b record.Block) (least, most uint64, err error) {
	return s.ofRows(b.Columns).Visible(ctx, b)
}
func (s everyTable) PartsSince(ctx context.Context, then time.Time) (uint64, error) {
	return s.of(0).PartsSince(ctx, then)
}
func (s everyTable) Reaggregate(ctx context.Context, b record.Block) error {
	return s.ofRows(b.Columns).Reaggregate(ctx, b)
}
func (s everyTable) Clock(context.Context) (time.Time, error) { return time.Now(), nil }
func (s everyTable) Known(ctx context.Context, c *record.Columns, rows []int, line string, found func(*flow.Identity)) error {
	return s.ofRows(c).Known(ctx, c, rows, line, found)
}
func (s everyTable) Marks(ctx context.Context, lane int, incarnation uint64, days []flow.SourceDay) (flow.Marks, error) {
	return s.of(lane).Marks(ctx, lane, incarnation, days)
}
func (s everyTable) StaleSourceDays(ctx context.Context, lane int, incarnation uint64) ([]flow.SourceDay, error) {
	return s.of(lane).StaleSourceDays(ctx, lane, incarnation)
}
func (s everyTable) Inserting(ctx context.Context, lane int) (bool, error) {
	return s.of(lane).Inserting(ctx, lane)
}
func (s everyTable) Incarnations(ctx context.Context, lane int, above uint64) ([]flow.Incarnation, error) {
	return s.of(lane).Incarnations(ctx, lane, above)
}

func (s everyTable) Last(ctx context.Context, lane int, incarnation uint64) (of, seq uint64, err error) {
	return s.of(lane).Last(ctx, lane, incarnation)
}

type noDeadLetters struct{}

func (noDeadLetters) Publish(context.Context, flow.Dead) error {
	return errors.New("unexpected dead letter")
}
