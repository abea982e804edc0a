package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"sluice/pkg/flow"
)

// Changes that arrive while others are applied share one step of the checkpoint, up to these numbers of changes
// and bytes. A few more are read ahead.
const (
	changesAtOnce = 256
	changesBytes  = 1 << 20
	changesAhead  = 16
)

// changes is the loop that applies changes of users and dataset fields, in the owner of lane 0. It has its own
// checkpoint: it waits neither for the lane's records nor for the warehouse, and neither waits for it.
//
//  1. read the changes that have arrived.
//  2. claim them by compare-and-swap, which fails after a reset or a takeover. A lane that is set back to before a claimed
//     message halts, as for records: entries of the state store may include the lost changes.
//  3. apply them in order, each only while the claim exists: a store that was set back may lack changes before it. A crash
//     here applies some again, which changes nothing.
//  4. move the checkpoint by compare-and-swap.
//
// A paused loop whose lane has another owner may apply changes again: every entry records its last change.
type changes struct {
	health
	deps  Deps
	owned bool // this process has owned the checkpoint

	applied, dead prometheus.Counter
}

// changesName is the name of the loop in errors, logs and heartbeats.
const changesName = "applying changes"

func (i *Ingester) newChanges() *changes {
	return &changes{
		health:  health{loop: changesName, cfg: i.cfg, log: i.log, gauge: i.metrics.changesState},
		deps:    i.deps,
		applied: i.metrics.changes, dead: i.metrics.dead.WithLabelValues("0"),
	}
}

// run applies changes until ctx ends, then returns nil; or until another process has taken them, then returns
// flow.ErrNotOwner.
func (c *changes) run(ctx context.Context) error {
	beat, end := c.cfg.Heartbeat(c.loop)
	defer end()
	c.beat = beat
	for ctx.Err() == nil {
		c.beat()
		position, lost, err := c.take(ctx)
		if lost {
			c.log.Info("changes are applied by another process", "owner", position.Owner)
			return flow.ErrNotOwner
		}
		if err == nil && position.Held(c.cfg.Now()) {
			err = errHeld
		} else if err == nil {
			err = c.session(ctx, position)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		c.beat()
		pause := heldTick
		if errors.Is(err, flow.ErrNotOwner) { // the checkpoint names the owner that moved it
			pause = 0
		} else if !errors.Is(err, errHeld) {
			pause = c.failed(err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return nil
}

// take reads the checkpoint and becomes its owner, like lane.take; a reset one has no owner.
func (c *changes) take(ctx context.Context) (p flow.LaneState, lost bool, err error) {
	p, err = c.deps.ChangeStates.Read(ctx, 0)
	if err != nil {
		return p, false, fmt.Errorf("read the checkpoint of the changes: %w", err)
	}
	if p.Owner == c.cfg.Owner {
		c.owned = true
		return p, false, nil
	}
	if c.owned && p.Owner != "" {
		return p, true, nil
	}
	p.Owner = c.cfg.Owner
	if p, err = c.deps.ChangeStates.CompareAndSwap(ctx, 0, p); err != nil {
		return p, false, fmt.Errorf("take the changes: %w", err)
	}
	c.owned = true
	return p, false, nil
}

// session applies changes from the checkpoint on until something fails or ctx ends; without a checkpoint it writes the
// first.
func (c *changes) session(ctx context.Context, p flow.LaneState) error {
	reader, err := c.deps.Lanes.OpenChanges(ctx, p.Done+1)
	if err != nil {
		return fmt.Errorf("open the changes after message %d: %w", p.Done, err)
	}
	defer reader.Close()
	if p.StreamID != "" && p.StreamID != reader.StreamID() {
		return halt("the stream was recreated: changes up to message %d were applied from %s, now there is %s; set the resume point of lane 0 and its changes with sluice lanes reset", p.Done, p.StreamID, reader.StreamID())
	}
	if p.Incarnation() == 0 {
		return c.begin(ctx, p, reader)
	}
	arrived := make(chan flow.Entry, changesAhead)
	g, run := errgroup.WithContext(ctx)
	g.Go(func() error {
		for {
			e, err := reader.Next(run)
			if err != nil {
				return fmt.Errorf("read the changes: %w", err)
			}
			select {
			case arrived <- e:
			case <-run.Done():
				return run.Err()
			}
		}
	})
	g.Go(func() error { return c.apply(run, p, arrived) })
	return g.Wait()
}

// begin writes the first checkpoint, before the first message, with the incarnations of the lane. If none of them has
// the first message, or a change of a later incarnation was applied (the bucket of lane states was set back), it begins
// an incarnation above all of them: an entry of the state store accepts no change of an earlier one. Earlier changes
// are applied again: within one incarnation that changes nothing, in another the result is the same.
func (c *changes) begin(ctx context.Context, p flow.LaneState, reader Reader) error {
	lane, err := c.deps.States.Read(ctx, 0)
	if err != nil {
		return fmt.Errorf("read the lane state of lane 0: %w", err)
	}
	last, err := c.deps.Changes.Incarnation(ctx)
	if err != nil {
		return fmt.Errorf("read earlier incarnations of applied changes: %w", err)
	}
	p.StreamID = reader.StreamID()
	if lane.IncarnationOf(1) > 0 && lane.Incarnation() >= last && lane.StreamID == p.StreamID {
		p.Incarnations = lane.Incarnations
	} else {
		p = p.WithIncarnation(max(uint64(c.cfg.Now().UnixMilli()), uint64(max(0, reader.Created().UnixMilli()))+1, last+1), p.Done+1)
	}
	if p, err = c.deps.ChangeStates.CompareAndSwap(ctx, 0, p); err != nil {
		return fmt.Errorf("write the first checkpoint of the changes: %w", err)
	}
	c.log.Info("first checkpoint of the changes", "incarnation", p.Incarnation(), "done", p.Done)
	return nil
}

// apply applies arriving changes.
func (c *changes) apply(ctx context.Context, p flow.LaneState, arrived <-chan flow.Entry) error {
	idle := time.NewTimer(idleTick)
	defer idle.Stop()
	for ; ; idle.Reset(idleTick) { // a step checks the checkpoint too
		select {
		case e := <-arrived:
			batch, last := gather(e, arrived)
			for i := range batch {
				batch[i].Incarnation = p.IncarnationOf(batch[i].Seq)
			}
			next := p
			next.Done, next.Stamp = last.Seq, last.Stored.UnixNano()
			var err error
			if p, err = c.step(ctx, p, next, batch); err != nil {
				return err
			}
			c.recovered()
		case <-idle.C:
			if err := c.unmoved(ctx, p); err != nil {
				return err
			}
			c.recovered()
			c.beat()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// gather returns the changes of an entry and of those that have arrived after it, and the last of these entries.
func gather(e flow.Entry, arrived <-chan flow.Entry) (batch []flow.Message, last flow.Entry) {
	for size := 0; ; {
		batch, last = append(batch, e.Messages...), e
		if size += len(e.Body); len(batch) >= changesAtOnce || size >= changesBytes {
			return batch, last
		}
		select {
		case e = <-arrived:
		default:
			return batch, last
		}
	}
}

// step claims a batch, applies it, and moves the checkpoint past it. It may finish for a while after ctx has ended.
func (c *changes) step(ctx context.Context, p, next flow.LaneState, batch []flow.Message) (flow.LaneState, error) {
	ctx, cancel := draining(ctx, c.cfg.DrainTime)
	defer cancel()
	claim := flow.Claim{First: p.Done + 1, Last: next.Done, Stamp: next.Stamp}
	if p.Claim != nil && p.Claim.Last > claim.Last { // of a larger batch before a crash
		claim.Last, claim.Stamp = p.Claim.Last, p.Claim.Stamp
		rest := claim
		rest.First = next.Done + 1
		next.Claim = &rest
	} else {
		next.Claim = nil
	}
	p.Claim = &claim
	p, err := c.deps.ChangeStates.CompareAndSwap(ctx, 0, p)
	if err != nil {
		return p, fmt.Errorf("claim changes: %w", err)
	}
	if err := c.applyAll(ctx, p, batch); err != nil {
		return p, err
	}
	// Applied. A crash here applies them again, which changes nothing.
	next.Revision = p.Revision
	if next, err = c.deps.ChangeStates.CompareAndSwap(ctx, 0, next); err != nil {
		return p, fmt.Errorf("move the checkpoint of the changes: %w", err)
	}
	return next, nil
}

// unmoved fails with flow.ErrNotOwner if the checkpoint has changed since it was written.
func (c *changes) unmoved(ctx context.Context, p flow.LaneState) error {
	now, err := c.deps.ChangeStates.Read(ctx, 0)
	if err != nil {
		return fmt.Errorf("read the checkpoint of the changes: %w", err)
	}
	if now.Revision != p.Revision {
		return fmt.Errorf("the checkpoint of the changes was moved: %w", flow.ErrNotOwner)
	}
	return nil
}

// applyAll applies changes while the checkpoint is p; one that can never be applied is dead-lettered.
func (c *changes) applyAll(ctx context.Context, p flow.LaneState, batch []flow.Message) error {
	c.beat() // there may be many dead letters
	err := c.deps.Changes.Apply(ctx, batch, func(ctx context.Context) error { return c.unmoved(ctx, p) })
	var refused *flow.StoreError
	switch {
	case err == nil:
		c.applied.Add(float64(len(batch)))
		return nil
	case !errors.As(err, &refused) || refused.Class != flow.ClassPoison:
		return fmt.Errorf("apply changes: %w", err)
	case len(batch) == 1:
		return c.publishDead(ctx, dead(batch[0], -1, batch[0].Body, codeRejected, refused.Error()))
	}
	for i := range batch {
		if err := c.applyAll(ctx, p, batch[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (c *changes) publishDead(ctx context.Context, d flow.Dead) error {
	if err := c.deps.DeadLetters.Publish(ctx, d); err != nil {
		return fmt.Errorf("dead-letter the change of message %d: %w", d.Message.Seq, err)
	}
	c.dead.Inc()
	c.log.WarnContext(ctx, "dead-lettered a change", "seq", d.Message.Seq, "code", d.Code, "reason", d.Reason)
	return nil
}
