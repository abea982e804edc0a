package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"sluice/pkg/record"
)

// lane is the loop of one lane while this process holds it.
type lane struct {
	health
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
	trials   trials // of the claim that is being inserted
	sent     sent   // pieces that were inserted at once in vain
	bearable int    // the most rows that the warehouse bears at once, as the block that is being stored has shown; 0 when it bears all
	refusals int    // rows that were refused since one was taken
	lost     uint64 // rows that flow.sources and flow.records have both lost
}

// run works on the lane until ctx ends, then returns nil; or until another
// process has taken it, then returns record.ErrNotOwner; or until the warehouse
// could not be reached for long and another process might, then returns
// record.ErrUnreachable. Any other failure ends a session, never the loop.
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
		if time.Since(begun) >= l.cfg.GiveUp && l.parts.Leases.Others() {
			return fmt.Errorf("%w: it was not ready for %v", record.ErrUnreachable, l.cfg.GiveUp)
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
		// From here on the owner before us cannot move the position. What it
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
