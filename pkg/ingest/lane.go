package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"sluice/pkg/record"
)

// lane is the loop of one lane while this process holds it.
type lane struct {
	number  int
	cfg     Config
	parts   Parts
	log     *slog.Logger
	metrics *laneMetrics
	beat    func()
	peers   *atomic.Int32 // lanes this process works on
	memory  [2]*block     // one is filled while the other is stored
	known   *known        // what is stored, as far as a session has learned

	// Of the messages before a position, and of those that a session has read
	// since: a session that fails leaves them to the next.
	recalled     string                 // the stream they are of; empty when they know nothing
	recalledLife uint64                 // and its incarnation
	clock        clock                  // owned by fill while a session runs
	window       window                 // owned by store while a session runs
	looked       map[uint64][]requestID // of messages that were read again; owned by store

	taken    bool   // the position has named us its owner
	written  uint64 // revision of the position as it was written last
	compared bool   // the table was compared with the position
	unknowns int    // failures in a row that are of no known class
	trials   trials // of the claim that is being inserted
	bearable int    // the most rows that the warehouse bears at once, as the block that is being stored has shown; 0 when it bears all
	refusals int    // rows that were refused since one was taken
	lost     uint64 // rows that flow.sources and flow.records have both lost

	mu       sync.Mutex
	cut      time.Time // since when the warehouse cannot be reached; zero while it can
	state    state
	failures int   // in a row
	failure  error // the last one; nil when all is well
}

// state is what a lane does.
type state int

const (
	running  state = iota
	retrying       // something fails that should pass
	isHalted       // somebody has to mend something
)

// haltError is what only a person can mend.
type haltError struct{ err error }

func (e *haltError) Error() string { return e.err.Error() }
func (e *haltError) Unwrap() error { return e.err }

func halt(format string, args ...any) error { return &haltError{fmt.Errorf(format, args...)} }

// run works on the lane until ctx ends, then returns nil; or until another
// process has taken it, then returns record.ErrNotOwner; or until the warehouse
// could not be reached for long and another process might, then returns
// record.ErrUnreachable. Any other failure ends a session, never the loop.
func (l *lane) run(ctx context.Context) error {
	beat, end := l.cfg.Heartbeat(l.number)
	defer end()
	l.beat = beat
	for {
		l.beat()
		position, lost, err := l.take(ctx)
		if lost {
			l.log.Info("lane taken over by another process", "owner", position.Owner)
			return record.ErrNotOwner
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
			if l.isCutOff() && l.parts.Leases.Others() {
				// What is claimed the next owner stores, under the same token.
				return fmt.Errorf("%w: %w", record.ErrUnreachable, err)
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// errHeld says that somebody holds the lane between two blocks: a recount reads
// the tables, in which nothing may change. It is no failure.
var errHeld = errors.New("the lane is held")

// heldTick is how often a lane that is held looks whether it may go on.
const heldTick = 100 * time.Millisecond

// take reads the position and makes it ours. To be called is leave to take it
// from somebody else, once: lost tells that another has done the same since.
func (l *lane) take(ctx context.Context) (p record.Position, lost bool, err error) {
	p, err = l.parts.Positions.Read(ctx, l.number)
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
		// From here on the owner before us can not move the position. What it
		// has claimed we store too, under the same token.
		if p, err = l.parts.Positions.Swap(ctx, l.number, p); err != nil {
			return p, false, fmt.Errorf("take the lane: %w", err)
		}
		l.log.Info("lane taken", "done", p.Done, "claim", p.Claim, "from", before)
	}
	l.written = p.Revision
	l.taken = true
	return p, false, nil
}

// failed decides what a failure means, and returns how long to wait.
func (l *lane) failed(err error) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures++
	l.failure = err

	var mend *haltError
	var store *record.StoreError
	stop := errors.As(err, &mend) || errors.Is(err, record.ErrGap) ||
		errors.Is(err, record.ErrFull) // no room for a dead letter: only a person makes some
	isStore := errors.As(err, &store)
	if !isStore || !store.Unreached {
		l.cut = time.Time{}
	} else if l.cut.IsZero() {
		l.cut = time.Now()
	}
	if isStore {
		l.unknowns++
		if store.Class != record.ClassUnknown {
			l.unknowns = 0
		}
		stop = stop || store.Class == record.ClassHalt || l.unknowns >= l.cfg.Unknowns
	}
	if stop {
		l.set(isHalted)
		l.log.Error("lane halted: it goes on once this is mended", "error", err, "failures", l.failures)
		return jitter(l.cfg.HaltProbe)
	}
	l.set(retrying)
	pause := l.cfg.RetryMost
	if n := l.failures - 1; n < 20 {
		pause = min(pause, l.cfg.RetryFirst<<n)
	}
	pause = jitter(pause)
	l.log.Warn("lane failed, trying again", "error", err, "failures", l.failures, "pause", pause)
	return pause
}

// isCutOff says that the warehouse could not be reached for long.
func (l *lane) isCutOff() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.cut.IsZero() && time.Since(l.cut) >= l.cfg.GiveUp
}

// well says that a block went through, or that nothing waits.
func (l *lane) well() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure != nil {
		l.log.Info("lane goes on", "failures", l.failures)
	}
	l.failures, l.unknowns, l.failure, l.cut = 0, 0, nil, time.Time{}
	l.set(running)
}

func (l *lane) set(s state) {
	l.state = s
	l.metrics.state.Set(float64(s))
}

// breakerAfter is how many failures in a row make a lane not ready.
const breakerAfter = 5

// trouble is what keeps the lane from its work, nil when nothing does.
func (l *lane) trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.state == isHalted:
		return fmt.Errorf("lane %d is halted: %w", l.number, l.failure)
	case l.failures >= breakerAfter:
		return fmt.Errorf("lane %d has failed %d times in a row: %w", l.number, l.failures, l.failure)
	}
	return nil
}

// jitter keeps processes that failed together from trying together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
