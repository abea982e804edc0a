package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/flow"
)

// holdTries is how often a lane state is read again that moves while it is
// written: its owner moves it with every block.
const holdTries = 100

// Hold asks the owner of a lane to claim nothing new until then, or until
// Release, and returns the lane state with the hold in it. A block that is
// claimed is stored and recorded as done first. The error says so when another
// name holds the lane.
//
// A holder that dies leaves the lane to the clock.
func (p *LaneStates) Hold(ctx context.Context, lane int, by string, until time.Time) (flow.LaneState, error) {
	return p.rewrite(ctx, lane, func(pos *flow.LaneState) error {
		if pos.Held(p.stream.cfg.Now()) && pos.Hold.By != by {
			return fmt.Errorf("lane %d is held by %s until %s", lane, pos.Hold.By, time.UnixMilli(pos.Hold.Until).UTC().Format(time.RFC3339))
		}
		pos.Hold = &flow.Hold{By: by, Until: until.UnixMilli()}
		return nil
	})
}

// Release ends a hold, unless it is of another name.
func (p *LaneStates) Release(ctx context.Context, lane int, by string) error {
	_, err := p.rewrite(ctx, lane, func(pos *flow.LaneState) error {
		if pos.Hold == nil || pos.Hold.By != by {
			return errAsItIs
		}
		pos.Hold = nil
		return nil
	})
	return err
}

// HoldAll holds every lane and waits until none has a claim: at most wait long.
// A program that dies holding them leaves them to the clock after hold and wait. What rests
// on it must compare the lane states again: see Hold.
func (p *LaneStates) HoldAll(ctx context.Context, by string, hold, wait time.Duration) (map[int]flow.LaneState, error) {
	if err := p.stream.Refresh(ctx); err != nil {
		return nil, err
	}
	held := map[int]flow.LaneState{}
	deadline := p.stream.cfg.Now().Add(wait)
	for _, lane := range p.stream.LaneNumbers() {
		pos, err := p.Hold(ctx, lane, by, p.stream.cfg.Now().Add(hold+wait))
		if err != nil {
			return held, err
		}
		held[lane] = pos
	}
	for lane, pos := range held {
		for pos.Claim != nil {
			if p.stream.cfg.Now().After(deadline) {
				return held, fmt.Errorf("the block %s of lane %d was claimed and is not known to be stored after %v: is its ingester running?", pos.Claim, lane, wait)
			}
			if !sleep(ctx, holdLook) {
				return held, ctx.Err()
			}
			var err error
			if pos, err = p.Read(ctx, lane); err != nil {
				return held, err
			}
		}
		held[lane] = pos
	}
	return held, nil
}

// ReleaseAll ends the holds of HoldAll, also when ctx has ended.
func (p *LaneStates) ReleaseAll(ctx context.Context, by string) (all error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, lane := range p.stream.LaneNumbers() {
		all = errors.Join(all, p.Release(ctx, lane, by))
	}
	return all
}

// holdLook is how often a lane that is held is looked at until its block is stored.
const holdLook = 50 * time.Millisecond

// errAsItIs says that a lane state needs no change.
var errAsItIs = errors.New("as it is")

// rewrite changes the state of a lane while others move it.
func (p *LaneStates) rewrite(ctx context.Context, lane int, change func(*flow.LaneState) error) (flow.LaneState, error) {
	for try := 1; ; try++ {
		pos, err := p.Read(ctx, lane)
		if err != nil {
			return pos, err
		}
		if err := change(&pos); errors.Is(err, errAsItIs) {
			return pos, nil
		} else if err != nil {
			return pos, err
		}
		next, err := p.CompareAndSwap(ctx, lane, pos)
		if err == nil || try == holdTries || !errors.Is(err, flow.ErrNotOwner) {
			return next, err
		}
	}
}

// pin is what a backup, or verify, asks of the purge. It has an entry of its own, so that
// the owner of the lane state does not notice.
type pin struct {
	From  uint64 `json:"from"`  // messages from here on stay
	Until int64  `json:"until"` // ms since 1970, by the server's clock
}

// PinBackup and PinVerify name those who pin messages.
const (
	PinBackup = "backup"
	PinVerify = "verify"
)

func pinKey(lane int, by string) string { return "pin." + strconv.Itoa(lane) + "." + by }

// Pin makes purges leave the messages of a lane from one on, for so long: what is
// copied behind a checkpoint must be there when its turn comes, and what is read twice
// the second time. It is renewed while it is needed; a program that dies leaves the lane
// to the clock. A purge that has begun may end after it.
func (s *Stream) Pin(ctx context.Context, lane int, by string, from uint64, lasting time.Duration) error {
	state, err := s.state(ctx, lane)
	if err != nil {
		return err
	}
	value, err := json.Marshal(pin{from, state.Now.Add(lasting).UnixMilli()})
	if err == nil {
		_, err = s.checkpoints.Put(ctx, pinKey(lane, by), value)
	}
	if err != nil {
		return unavailable(fmt.Errorf("pin the messages of lane %d from %d on: %w", lane, from, err), time.Second)
	}
	return nil
}

// Unpin takes Pin back.
func (s *Stream) Unpin(ctx context.Context, lane int, by string) error {
	if err := s.checkpoints.Purge(ctx, pinKey(lane, by)); err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return unavailable(fmt.Errorf("unpin the messages of lane %d: %w", lane, err), time.Second)
	}
	return nil
}

// pinned is the first message of a lane that is pinned, 0 when there is none.
func (s *Stream) pinned(ctx context.Context, lane *Lane) (first uint64, err error) {
	for _, by := range []string{PinBackup, PinVerify} {
		entry, err := s.checkpoints.Get(ctx, pinKey(lane.Number, by))
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue
		}
		if err != nil {
			return 0, unavailable(fmt.Errorf("look up what is pinned of lane %d: %w", lane.Number, err), time.Second)
		}
		var k pin
		if err := json.Unmarshal(entry.Value(), &k); err != nil {
			return 0, fmt.Errorf("look up what is pinned of lane %d: %w", lane.Number, err)
		}
		if lane.Now.UnixMilli() < k.Until && (first == 0 || k.From < first) {
			first = k.From
		}
	}
	return first, nil
}
