package state

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
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

// step is a change and its place in the stream.
type step struct {
	change change.Change
	place  change.Place
}

// applyTo applies all changes of one target with one write.
func (a *Applier) applyTo(ctx context.Context, key string, steps []step) error {
	skipped, ignored := 0, 0
	err := a.store.update(ctx, key, a.m.conflicts, func(e change.Entry) (change.Entry, bool, error) {
		skipped, ignored = 0, 0
		for _, s := range steps {
			next, applied, err := change.Apply(e, s.change, s.place)
			if err != nil {
				return e, false, refused(err)
			}
			if !applied {
				skipped++
			} else if not, _ := next.Outcome(s.change.ID); not && s.change.Base != nil {
				ignored++
			}
			e = next
		}
		return e, skipped < len(steps), nil
	})
	a.m.skipped.Add(float64(skipped))
	if err == nil {
		a.m.ignored.Add(float64(ignored))
	}
	return err
}

// refused says that a change cannot be applied: for what it is, or because the
// entry that is stored is damaged. Neither keeps other changes waiting, nor
// records: it is dead-lettered, and can be replayed once the entry is fixed.
func refused(err error) error { return &flow.StoreError{Class: flow.ClassPoison, Err: err} }

// Audits is where it is written down who changed what. *warehouse.DB is the
// real one. InsertChanges is durable once it returns nil, and idempotent per
// token as long as the rows are the same.
type Audits interface {
	InsertChanges(ctx context.Context, token string, rows []change.Audit) error
}

// Auditor writes down the changes of the stream. It knows nothing of how they
// were applied: what is written down was accepted, and one that could not be
// applied is among the dead letters, too.
type Auditor struct{ audits Audits }

// NewAuditor makes an Auditor.
func NewAuditor(audits Audits) *Auditor { return &Auditor{audits: audits} }

// WriteDown writes down the changes that messages of lane 0 hold, and passes over
// what is no change. It is idempotent for the same messages.
func (a *Auditor) WriteDown(ctx context.Context, messages []flow.Message) error {
	rows := make([]change.Audit, 0, len(messages))
	for _, m := range messages {
		if c, err := read(m); err == nil {
			rows = append(rows, c.Audit(m.Seq))
		}
	}
	if len(rows) == 0 {
		return nil
	}
	if err := a.audits.InsertChanges(ctx, token(messages), rows); err != nil {
		return fmt.Errorf("write down changes: %w", err)
	}
	return nil
}

// token names the messages: the same for the same ones.
func token(messages []flow.Message) string {
	hash := sha256.New()
	for _, m := range messages {
		sum := sha256.Sum256(m.Body)
		hash.Write(sum[:])
	}
	first, last := messages[0].Seq, messages[len(messages)-1].Seq
	return fmt.Sprintf("changes:%d-%d:%s", first, last, hex.EncodeToString(hash.Sum(nil)[:16]))
}
