package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"sluice/pkg/flow"
	"sluice/pkg/ingest/repeats"
)

// Ingester works on the lanes this process holds.
type Ingester struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *metrics

	mu      sync.Mutex
	lanes   map[int]*lane // those that are worked on now
	changes *changes      // nil unless lane 0 is
	count   atomic.Int32  // of lanes
}

// New prepares an Ingester; Run does the work.
func New(cfg Config, deps Deps, log *slog.Logger, reg prometheus.Registerer) *Ingester {
	return &Ingester{
		cfg: cfg.withDefaults(), deps: deps, log: log,
		metrics: newMetrics(reg), lanes: map[int]*lane{},
	}
}

// Run works until ctx is done. It then finishes the inserts in flight, for as
// long as Config.DrainTime, and returns nil.
func (i *Ingester) Run(ctx context.Context) error {
	if i.cfg.Owner == "" { // a lane without an owner would pass for ours
		return errors.New("this ingester has no name to own lanes by")
	}
	err := i.deps.Leases.Run(ctx, i.work)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// work works on one lane until ctx is done or another process has the lane. With
// lane 0 come the changes of users and dataset fields: neither loop waits for the
// other, and what ends one ends both.
func (i *Ingester) work(ctx context.Context, number int) error {
	l := &lane{
		health: health{loop: fmt.Sprintf("lane %d", number), retry: i.cfg, out: i.log.With("lane", number)},
		number: number, cfg: i.cfg, deps: i.deps,
		log:      i.log.With("lane", number),
		metrics:  i.metrics.lane(number),
		peers:    &i.count,
		memory:   [2]*block{newBlock(), newBlock()},
		known:    repeats.NewRecords(i.cfg.KnownBytes),
		requests: repeats.NewRequests(i.cfg.RepeatWindow),
	}
	l.gauge = l.metrics.state
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

// Check returns nil when every lane this process holds can be worked on, and its
// changes, and otherwise what keeps which from it.
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

// lane is the loop of one lane while this process holds it.
type lane struct {
	health
	number  int
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *laneMetrics
	beat    func()
	peers   *atomic.Int32 // lanes this process works on
	memory  [2]*block     // one is filled while the other is stored

	known    *repeats.Records  // what is stored, as far as a session has learned; owned by store while one runs
	requests *repeats.Requests // which requests came lately; its clock is owned by fill while a session runs, the rest by store

	taken    bool   // the position has named us its owner
	written  uint64 // revision of the position as it was written last
	compared bool   // the table was compared with the position
	trials   trials // of the claim that is being inserted
	sent     sent   // pieces that were inserted at once in vain
	bearable int    // the most rows that the warehouse bears at once, as the block that is being stored has shown; 0 when it bears all
	refusals int    // rows that were refused since one was taken
	lost     uint64 // rows that flow.sources and flow.records have both lost
}

// run works on the lane until ctx ends, then returns nil; or until another
// process has taken it, then returns flow.ErrNotOwner; or until the warehouse
// could not be reached for long and another process might, then returns
// flow.ErrUnreachable. Any other failure ends a session, never the loop.
func (l *lane) run(ctx context.Context) error {
	beat, end := l.cfg.Heartbeat(l.loop)
	defer end()
	l.beat = beat
	if err := l.untilReady(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		l.beat()
		position, lost, err := l.take(ctx)
		if lost {
			l.log.Info("lane taken over by another process", "owner", position.Owner)
			return flow.ErrNotOwner
		}
		if err == nil && position.Claim == nil && position.Held(time.Now()) {
			err = errHeld
		} else if err == nil {
			err = l.session(ctx, position)
		}
		if ctx.Err() != nil {
			return nil
		}
		l.beat()
		pause := heldTick
		if !errors.Is(err, errHeld) {
			pause = l.failed(err)
			if l.isCutOff() && l.deps.Leases.Others() {
				// What is claimed the next owner stores, under the same token.
				return fmt.Errorf("%w: %w", flow.ErrUnreachable, err)
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return nil
}

// untilReady waits until the warehouse can be used, or ctx ends.
func (l *lane) untilReady(ctx context.Context) error {
	if l.cfg.Ready == nil {
		return nil
	}
	tick := time.NewTicker(idleTick)
	defer tick.Stop()
	for begun := time.Now(); ; {
		select {
		case <-l.cfg.Ready:
			return nil
		case <-ctx.Done():
			return nil
		case <-tick.C:
			l.beat()
		}
		if time.Since(begun) >= l.cfg.GiveUp && l.deps.Leases.Others() {
			return fmt.Errorf("%w: it was not ready for %v", flow.ErrUnreachable, l.cfg.GiveUp)
		}
	}
}

// errHeld says that the lane is held between two blocks: a recount reads the
// tables, in which nothing may change. It is no failure.
var errHeld = errors.New("the lane is held")

// heldTick is how often a lane that is held looks whether it may go on.
const heldTick = 100 * time.Millisecond

// take reads the position and makes it ours. A call may take it from another
// owner, once: lost tells that another has done the same since.
func (l *lane) take(ctx context.Context) (p flow.Position, lost bool, err error) {
	p, err = l.deps.Positions.Read(ctx, l.number)
	if err != nil {
		return p, false, fmt.Errorf("read the position: %w", err)
	}
	if p.Revision != l.written {
		l.compared = false // it was reset, or NATS was set back to an earlier state
	}
	if p.Owner != l.cfg.Owner {
		if l.taken {
			return p, true, nil
		}
		before := p.Owner
		p.Owner = l.cfg.Owner
		// From here on the owner before us cannot move the position. What it
		// has claimed we store too, under the same token.
		if p, err = l.deps.Positions.Swap(ctx, l.number, p); err != nil {
			return p, false, fmt.Errorf("take the lane: %w", err)
		}
		l.log.Info("lane taken", "done", p.Done, "claim", p.Claim, "from", before)
	}
	l.written = p.Revision
	l.taken = true
	return p, false, nil
}

// health is how a loop fares: what failed last, how often in a row, and what that
// means for the next try.
type health struct {
	loop  string // its name: lane 3, or applying changes
	retry Config
	out   *slog.Logger
	gauge prometheus.Gauge // of its state

	mu       sync.Mutex
	cut      time.Time // since when the warehouse cannot be reached; zero while it can
	state    state
	failures int   // in a row
	unknowns int   // of those, in a row, of no known class
	failure  error // the last one; nil when all is well
}

// state is what a loop does.
type state int

const (
	running  state = iota
	retrying       // something fails that should pass
	isHalted       // an operator has to mend something
)

// haltError is what only a person can mend.
type haltError struct{ err error }

func (e *haltError) Error() string { return e.err.Error() }
func (e *haltError) Unwrap() error { return e.err }

func halt(format string, args ...any) error { return &haltError{fmt.Errorf(format, args...)} }

// failed decides what a failure means, and returns how long to wait.
func (h *health) failed(err error) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures++
	h.failure = err

	var mend *haltError
	var store *flow.StoreError
	stop := errors.As(err, &mend) || errors.Is(err, flow.ErrGap) ||
		errors.Is(err, flow.ErrFull) // no room for a dead letter: only a person makes some
	isStore := errors.As(err, &store)
	if !isStore || !store.Unreached {
		h.cut = time.Time{}
	} else if h.cut.IsZero() {
		h.cut = time.Now()
	}
	if isStore {
		h.unknowns++
		if store.Class != flow.ClassUnknown {
			h.unknowns = 0
		}
		stop = stop || store.Class == flow.ClassHalt || h.unknowns >= h.retry.Unknowns
	}
	if stop {
		h.set(isHalted)
		h.out.ErrorContext(spanOf(err), h.loop+" halted: it goes on once this is mended", "error", err, "failures", h.failures)
		return jitter(h.retry.HaltProbe)
	}
	h.set(retrying)
	pause := h.retry.RetryMost
	if n := h.failures - 1; n < 20 {
		pause = min(pause, h.retry.RetryFirst<<n)
	}
	pause = jitter(pause)
	h.out.WarnContext(spanOf(err), h.loop+" failed, trying again", "error", err, "failures", h.failures, "pause", pause)
	return pause
}

// isCutOff says that the warehouse could not be reached for long.
func (h *health) isCutOff() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.cut.IsZero() && time.Since(h.cut) >= h.retry.GiveUp
}

// recovered says that something went through, or that nothing waits.
func (h *health) recovered() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failure != nil {
		h.out.Info(h.loop+" goes on", "failures", h.failures)
	}
	h.failures, h.unknowns, h.failure, h.cut = 0, 0, nil, time.Time{}
	h.set(running)
}

func (h *health) set(s state) {
	h.state = s
	h.gauge.Set(float64(s))
}

// breakerAfter is how many failures in a row make a loop not ready.
const breakerAfter = 5

// err is what keeps the loop from its work, nil when nothing does.
func (h *health) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.state == isHalted:
		return fmt.Errorf("%s is halted: %w", h.loop, h.failure)
	case h.failures >= breakerAfter:
		return fmt.Errorf("%s has failed %d times in a row: %w", h.loop, h.failures, h.failure)
	}
	return nil
}

// jitter keeps processes that failed together from trying together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
