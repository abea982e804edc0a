package state

import (
	"context"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/change"
	"sluice/pkg/flow"
)

// writers is how many entries are written at the same time: a write waits for
// the disk, not for the processor.
const writers = 16

// Applier applies the changes of the stream to a Store.
type Applier struct {
	store *Store
	m     *metrics
}

// NewApplier makes an Applier.
func NewApplier(store *Store, reg prometheus.Registerer) *Applier {
	return &Applier{store: store, m: newMetrics(reg)}
}

// Apply applies the changes that messages of lane 0 hold, in order. It is
// idempotent: after any error, and after a crash anywhere, the same messages
// come again. When one of them can never be applied it returns a
// *flow.StoreError of ClassPoison; then, too, some may be applied.
func (a *Applier) Apply(ctx context.Context, messages []flow.Message) error {
	if len(messages) == 0 {
		return nil
	}
	start := time.Now()
	pending := make(map[string][]step)
	for _, m := range messages {
		c, err := read(m)
		if err != nil {
			return err
		}
		key := c.Target.Key()
		pending[key] = append(pending[key], step{c, change.Place{Incarnation: m.Incarnation, Seq: m.Seq}})
	}
	var g errgroup.Group
	g.SetLimit(writers)
	for key, steps := range pending {
		g.Go(func() error { return a.applyTo(ctx, key, steps) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	a.m.seconds.Observe(time.Since(start).Seconds())
	return nil
}

// Incarnation is the Store's.
func (a *Applier) Incarnation(ctx context.Context) (uint64, error) { return a.store.Incarnation(ctx) }

// read reads the change in a message. The error is a *flow.StoreError of
// ClassPoison: the message is no change, or not of the target it names.
func read(m flow.Message) (change.Change, error) {
	c, err := change.Decode(m.Body)
	if err != nil {
		return change.Change{}, refused(err)
	}
	if !strings.HasSuffix(m.Topic, ".change."+c.Target.Key()) {
		return change.Change{}, refused(&change.BadChangeError{Code: "wrong_topic", Reason: "the change is published under another target's name"})
	}
	return c, nil
}

// step is a change and where it stands in the stream.
type step struct {
	change change.Change
	place  change.Place
}

// applyTo applies all changes of one target with one write.
func (a *Applier) applyTo(ctx context.Context, key string, steps []step) error {
	repeated := 0
	err := a.store.update(ctx, key, a.m.conflicts, func(e change.Entry) (change.Entry, bool, error) {
		repeated = 0
		for _, s := range steps {
			next, applied, err := change.Apply(e, s.change, s.place)
			if err != nil {
				return e, false, refused(err)
			}
			if !applied {
				repeated++
			}
			e = next
		}
		return e, repeated < len(steps), nil
	})
	a.m.repeated.Add(float64(repeated))
	return err
}

// refused says that a change cannot be applied: for what it is, or because the
// entry that is stored is damaged. Neither keeps other changes waiting, nor
// records: it is set aside, and can be replayed once the entry is mended.
func refused(err error) error { return &flow.StoreError{Class: flow.ClassPoison, Err: err} }
