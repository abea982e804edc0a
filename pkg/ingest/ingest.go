package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"sluice/pkg/ingest/dedup"
)

// Ingester ingests the lanes this process holds.
type Ingester struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *metrics
	turn    chan struct{} // full while a lane inserts a block

	mu      sync.Mutex
	lanes   map[int]*lane // held lanes
	changes *changes      // nil unless lane 0 is held
	count   atomic.Int32  // of lanes
}

// New makes an Ingester; Run starts it.
func New(cfg Config, deps Deps, log *slog.Logger, reg prometheus.Registerer) *Ingester {
	return &Ingester{
		cfg: cfg.withDefaults(), deps: deps, log: log,
		metrics: newMetrics(reg), lanes: map[int]*lane{}, turn: make(chan struct{}, 1),
	}
}

// Run works until ctx is done. It then finishes the inserts in flight, within Config.DrainTime, and returns nil.
func (i *Ingester) Run(ctx context.Context) error {
	if i.cfg.Owner == "" { // a lane without owner would count as ours
		return errors.New("ingest: Config.Owner is empty: set a unique name per process")
	}
	err := i.deps.Leases.Run(ctx, i.work)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// work works on one lane until ctx is done or another process has the lane. Lane 0 includes the loop of changes:
// neither waits for the other, and both end together.
func (i *Ingester) work(ctx context.Context, number int) error {
	m := i.metrics.lane(number)
	l := &lane{
		health: health{loop: fmt.Sprintf("lane %d", number), cfg: i.cfg, log: i.log.With("lane", number), gauge: m.state},
		number: number, deps: i.deps, metrics: m, peers: &i.count, turn: i.turn,
		records:  dedup.NewRecordIndex(i.cfg.KnownBytes),
		requests: dedup.NewRequests(i.cfg.RepeatWindow),
	}
	loops := []func(context.Context) error{l.run}
	var c *changes
	if number == 0 && i.deps.Changes != nil {
		c = i.newChanges()
		loops = append(loops, c.run)
	}
	i.count.Add(1)
	defer i.count.Add(-1)
	i.mu.Lock()
	i.lanes[number] = l
	if c != nil {
		i.changes = c
	}
	i.mu.Unlock()
	defer func() {
		i.mu.Lock()
		delete(i.lanes, number)
		if c != nil {
			i.changes = nil
			i.metrics.changesState.Set(0)
		}
		i.mu.Unlock()
		i.metrics.forget(number)
	}()
	g, ctx := errgroup.WithContext(ctx)
	for _, loop := range loops {
		g.Go(func() error { return loop(ctx) })
	}
	return g.Wait()
}

// Check fails if a lane this process holds, or its changes, cannot make progress.
func (i *Ingester) Check(context.Context) error {
	i.mu.Lock()
	lanes := make([]*lane, 0, len(i.lanes))
	for _, l := range i.lanes {
		lanes = append(lanes, l)
	}
	c := i.changes
	i.mu.Unlock()
	slices.SortFunc(lanes, func(a, b *lane) int { return cmp.Compare(a.number, b.number) })
	var all []error
	for _, l := range lanes {
		all = append(all, l.err())
	}
	if c != nil {
		all = append(all, c.err())
	}
	return errors.Join(all...)
}
