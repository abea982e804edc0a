package ingest

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Parts are what an Ingester works with. Changes may be nil where no changes
// are published: a lane halts at the first one.
type Parts struct {
	Leases      Leases
	Source      Source
	Positions   Positions
	Warehouse   Warehouse
	DeadLetters DeadLetters
	Changes     Changes
}

// Ingester works on the lanes this process holds.
type Ingester struct {
	cfg     Config
	parts   Parts
	log     *slog.Logger
	metrics *metrics

	mu    sync.Mutex
	lanes map[int]*lane // those that are worked on now
	count atomic.Int32  // of lanes
}

// New prepares an Ingester; Run does the work.
func New(cfg Config, parts Parts, log *slog.Logger, reg prometheus.Registerer) *Ingester {
	return &Ingester{
		cfg: cfg.withDefaults(), parts: parts, log: log,
		metrics: newMetrics(reg), lanes: map[int]*lane{},
	}
}

// Run works until ctx is done. It then finishes the inserts in flight, for as
// long as Config.DrainTime, and returns nil.
func (i *Ingester) Run(ctx context.Context) error {
	err := i.parts.Leases.Run(ctx, i.work)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// work works on one lane until ctx is done or another process has the lane.
func (i *Ingester) work(ctx context.Context, number int) error {
	l := &lane{
		number: number, cfg: i.cfg, parts: i.parts,
		log:     i.log.With("lane", number),
		metrics: i.metrics.lane(number),
		peers:   &i.count,
		memory:  [2]*block{newBlock(), newBlock()},
		known:   newKnown(i.cfg.KnownBytes),
		clock:   clock{window: i.cfg.RepeatWindow},
		looked:  map[uint64][]requestID{},
	}
	i.count.Add(1)
	defer i.count.Add(-1)
	i.mu.Lock()
	i.lanes[number] = l
	i.mu.Unlock()
	defer func() {
		i.mu.Lock()
		delete(i.lanes, number)
		i.mu.Unlock()
		i.metrics.forget(number)
	}()
	return l.run(ctx)
}

// Check returns nil when every lane this process holds can be worked on, and
// otherwise what keeps which lane from it.
func (i *Ingester) Check(context.Context) error {
	i.mu.Lock()
	lanes := make([]*lane, 0, len(i.lanes))
	for _, l := range i.lanes {
		lanes = append(lanes, l)
	}
	i.mu.Unlock()
	slices.SortFunc(lanes, func(a, b *lane) int { return cmp.Compare(a.number, b.number) })
	var all []error
	for _, l := range lanes {
		all = append(all, l.trouble())
	}
	return errors.Join(all...)
}
