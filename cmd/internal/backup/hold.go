package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// errMoved: a lane was not held.
var errMoved = errors.New("a lane moved")

// claimWait bounds the wait for claimed blocks to be stored.
const claimWait = 30 * time.Second

// held holds all lanes between two blocks, without a claim, and changes, and calls copy with
// the lane states. A lane's owner stops at its next compare-and-swap. No clock is trusted:
// held fails with errMoved if a state differs afterwards. Changes being applied at the hold
// may be in the copied state store, and are applied again after a restore; that has no
// effect, because an entry names its last change, and the lane is copied after the store.
func (b *backup) held(ctx context.Context, copy func(lanes []Lane) error) (lanes []Lane, err error) {
	by := "backup-" + b.m.ID
	changes := stream.NewChangeStates(b.stream)
	defer func() {
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, b.positions.ReleaseAll(ctx, by), changes.Release(releasing, 0, by))
	}()
	held, err := b.positions.HoldAll(ctx, by, b.cfg.Hold, claimWait)
	if err != nil {
		return nil, err
	}
	if b.m.Changes, err = changes.Hold(ctx, 0, by, time.Now().Add(b.cfg.Hold)); err != nil {
		return nil, err
	}
	b.m.Changes.Owner, b.m.Changes.Hold = "", nil
	since := time.Now()
	holding, stop := context.WithCancel(ctx)
	var extending sync.WaitGroup
	extending.Go(func() { b.extend(holding, by, changes, held) })
	defer extending.Wait() // before the lanes are released
	defer stop()

	for _, info := range b.stream.Lanes() {
		pos := held[info.Number]
		if pos.Incarnation() == 0 || pos.StreamID == "" {
			return nil, fmt.Errorf("lane %d has no checkpoint: start an ingester first", info.Number)
		}
		pos.Owner, pos.Hold = "", nil
		l := Lane{info.Number, info.First, pos}
		if err := b.pinLane(ctx, l); err != nil {
			return nil, err
		}
		lanes = append(lanes, l)
	}
	if err := copy(lanes); err != nil {
		return nil, err
	}
	for _, l := range lanes {
		now, err := b.positions.Read(ctx, l.Number)
		if err != nil {
			return nil, err
		}
		if !samePosition(now, l.Position) {
			return nil, errMoved
		}
	}
	if now, err := changes.Read(ctx, 0); err != nil || !samePosition(now, b.m.Changes) {
		return nil, cmp.Or(err, errMoved)
	}
	b.cfg.Log.Info("the lanes were held", "lanes", len(lanes), "seconds", time.Since(since).Seconds())
	return lanes, nil
}

// samePosition reports whether nothing was claimed or stored between two lane states.
func samePosition(a, b flow.LaneState) bool {
	for _, p := range []*flow.LaneState{&a, &b} {
		p.Owner, p.Hold, p.Revision = "", nil, 0
	}
	return reflect.DeepEqual(a, b)
}

// extend renews the holds until ctx ends.
func (b *backup) extend(ctx context.Context, by string, changes *stream.LaneStates, held map[int]flow.LaneState) {
	tick := time.NewTicker(b.cfg.Hold / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for lane := range held {
			if _, err := b.positions.Hold(ctx, lane, by, time.Now().Add(b.cfg.Hold)); err != nil && ctx.Err() == nil {
				b.cfg.Log.Warn("backup: the hold of a lane was not renewed", "lane", lane, "error", err)
			}
		}
		if _, err := changes.Hold(ctx, 0, by, time.Now().Add(b.cfg.Hold)); err != nil && ctx.Err() == nil {
			b.cfg.Log.Warn("backup: the hold of changes was not renewed", "error", err)
		}
	}
}

// sameLanes fails when lanes were added, reset, or purged since they were held.
func (b *backup) sameLanes(ctx context.Context) error {
	infos := b.stream.Lanes()
	if len(infos) != len(b.m.Lanes) {
		return fmt.Errorf("lanes were added since it began: %d, now %d", len(b.m.Lanes), len(infos))
	}
	for i, l := range b.m.Lanes {
		if infos[i].First > l.needs() {
			return fmt.Errorf("lane %d was purged up to message %d while the backup was interrupted, and the backup needs %d", l.Number, infos[i].First-1, l.needs())
		}
		now, err := b.positions.Read(ctx, l.Number)
		if err != nil {
			return err
		}
		if now.StreamID != l.Position.StreamID || now.Incarnation() != l.Position.Incarnation() || now.Done < l.Position.Done {
			return fmt.Errorf("lane %d was recreated or reset since it began, or this is another installation", l.Number)
		}
	}
	return nil
}

// pin renews the pins of the lanes until ctx ends.
func (b *backup) pin(ctx context.Context) {
	for {
		for _, l := range b.m.Lanes {
			if err := b.pinLane(ctx, l); err != nil && ctx.Err() == nil {
				b.cfg.Log.Warn("backup: the messages of a lane were not pinned", "lane", l.Number, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(b.cfg.Keep / 3):
		}
	}
}

// pinLane protects the messages that a restore needs from purging.
func (b *backup) pinLane(ctx context.Context, l Lane) error {
	from := l.needs()
	if l.Number == 0 && b.m.Changes.Incarnation() > 0 {
		from = min(from, b.m.Changes.Done+1)
	}
	return b.stream.Pin(ctx, l.Number, stream.PinBackup, from, b.cfg.Keep)
}

func (b *backup) unpin(ctx context.Context) (all error) {
	for _, l := range b.m.Lanes {
		all = errors.Join(all, b.stream.Unpin(ctx, l.Number, stream.PinBackup))
	}
	return all
}
