package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/flow"
)

// holdTries bounds the attempts to write a lane state, which its owner moves with every
// block.
const holdTries = 1000

// Hold asks the owner of a lane to make no new claims until a time or Release, and returns the
// held lane state. A claimed block is stored and recorded as done first. It fails if another
// name holds the lane.
//
// The hold of a holder that dies expires.
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
			return errUnchanged
		}
		pos.Hold = nil
		return nil
	})
	return err
}

// HoldAll holds every lane and waits, at most wait, until none has a claim. If the program
// dies, the holds expire after hold and wait. Operations under them must compare the lane
// states again: see Hold.
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
				return held, fmt.Errorf("block %s of lane %d is claimed but not stored after %v: check that its ingester runs", pos.Claim, lane, wait)
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

// ReleaseAll ends the holds of HoldAll, even if ctx has ended.
func (p *LaneStates) ReleaseAll(ctx context.Context, by string) (all error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, lane := range p.stream.LaneNumbers() {
		all = errors.Join(all, p.Release(ctx, lane, by))
	}
	return all
}

// holdLook is the interval of reading a held lane until its block is stored.
const holdLook = 50 * time.Millisecond

// errUnchanged means that a lane state needs no change.
var errUnchanged = errors.New("unchanged")

// rewrite changes the state of a lane concurrently with its owner.
func (p *LaneStates) rewrite(ctx context.Context, lane int, change func(*flow.LaneState) error) (flow.LaneState, error) {
	for try := 1; ; try++ {
		pos, err := p.Read(ctx, lane)
		if err != nil {
			return pos, err
		}
		if err := change(&pos); errors.Is(err, errUnchanged) {
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

// pin keeps messages for a backup, verify, or rebuild. It has its own entry, so that the lane state's
// owner is not disturbed.
type pin struct {
	From  uint64 `json:"from"`  // messages from here on are kept
	Until int64  `json:"until"` // ms since 1970, by the server's clock
}

// These name the holders of pins.
const (
	PinBackup  = "backup"
	PinVerify  = "verify"
	PinRebuild = "rebuild"
)

// pinLasting is the lifetime of a pin of Pinned when the program dies; it is renewed after a third.
const pinLasting = 3 * time.Minute

// Pinned calls do while the messages of lanes, from the sequences that from returns, are pinned.
// from is called again at each renewal.
func (s *Stream) Pinned(ctx context.Context, by string, from func() map[int]uint64, do func(context.Context) error) error {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		for lane := range from() {
			_ = s.Unpin(ctx, lane, by) // else it expires
		}
	}()
	pin := func(ctx context.Context) error {
		for lane, seq := range from() {
			if err := s.Pin(ctx, lane, by, seq, pinLasting); err != nil {
				return err
			}
		}
		return nil
	}
	if err := pin(ctx); err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for {
			select {
			case <-working.Done():
				return
			case <-time.After(pinLasting / 3):
				_ = pin(working) // the next attempt comes before the pin expires
			}
		}
	})
	defer renewing.Wait()
	defer stop()
	return do(working)
}

func pinKey(lane int, by string) string { return "pin." + strconv.Itoa(lane) + "." + by }

// Pin keeps the messages of a lane from a sequence on, for a time: a backup needs those after
// a checkpoint, verify reads messages twice, and rebuild inserts them again. Renew it while needed; if the program dies it
// expires. A running purge may end after it.
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
		return unavailable(fmt.Errorf("pin the messages of lane %d from %d: %w", lane, from, err), time.Second)
	}
	return nil
}

// Unpin removes a pin.
func (s *Stream) Unpin(ctx context.Context, lane int, by string) error {
	if err := s.checkpoints.Purge(ctx, pinKey(lane, by)); err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return unavailable(fmt.Errorf("unpin the messages of lane %d: %w", lane, err), time.Second)
	}
	return nil
}

// pinned is the first message of a lane that is pinned, 0 if none.
func (s *Stream) pinned(ctx context.Context, lane *Lane) (first uint64, err error) {
	for _, by := range []string{PinBackup, PinVerify, PinRebuild} {
		entry, err := s.checkpoints.Get(ctx, pinKey(lane.Number, by))
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue
		}
		if err != nil {
			return 0, unavailable(fmt.Errorf("look up the pins of lane %d: %w", lane.Number, err), time.Second)
		}
		var k pin
		if err := json.Unmarshal(entry.Value(), &k); err != nil {
			return 0, fmt.Errorf("look up the pins of lane %d: %w", lane.Number, err)
		}
		if lane.Now.UnixMilli() < k.Until && (first == 0 || k.From < first) {
			first = k.From
		}
	}
	return first, nil
}
