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

// writers bounds concurrent writes of entries, which wait for the disk rather than the
// processor.
const writers = 16

type Applier struct {
	store *Store
	m     *metrics
}

func NewApplier(store *Store, reg prometheus.Registerer) *Applier {
	return &Applier{store: store, m: newMetrics(reg)}
}

// Apply applies the changes in messages of lane 0, in order. It is idempotent: after an
// error or a crash the same messages are applied again. If one can never be applied it
// returns a *flow.StoreError of ClassPoison; others may then be applied.
//
// claimed is called between the reading and the writing of each entry, and its error ends
// Apply. An entry that was read before the store was set back has another revision after it;
// one that is read afterwards may lack changes before these.
func (a *Applier) Apply(ctx context.Context, messages []flow.Message, claimed func(context.Context) error) error {
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
		g.Go(func() error { return a.applyTo(ctx, key, steps, claimed) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	a.m.seconds.Observe(time.Since(start).Seconds())
	return nil
}

func (a *Applier) Incarnation(ctx context.Context) (uint64, error) { return a.store.Incarnation(ctx) }

// read decodes the change in a message. The error is a *flow.StoreError of ClassPoison:
// the message is not a change, or not one of its subject's target.
func read(m flow.Message) (change.Change, error) {
	c, err := change.Decode(m.Body)
	if err != nil {
		return change.Change{}, refused(err)
	}
	if !strings.HasSuffix(m.Topic, ".change."+c.Target.Key()) {
		return change.Change{}, refused(&change.BadChangeError{Code: "wrong_topic", Reason: "the change was published under another target's subject"})
	}
	return c, nil
}

// step is a change and its place in the stream.
type step struct {
	change change.Change
	place  change.Place
}

// applyTo applies all changes of one target with one write.
func (a *Applier) applyTo(ctx context.Context, key string, steps []step, claimed func(context.Context) error) error {
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
		if skipped == len(steps) {
			return e, false, nil
		}
		return e, true, claimed(ctx)
	})
	a.m.skipped.Add(float64(skipped))
	if err == nil {
		a.m.ignored.Add(float64(ignored))
	}
	return err
}

// refused means that a change cannot be applied, or that the stored entry is corrupt. It is
// dead-lettered, so that it blocks neither other changes nor records, and can be replayed
// once the entry is fixed.
func refused(err error) error { return &flow.StoreError{Class: flow.ClassPoison, Err: err} }

// Audits is the audit table. *warehouse.DB is the real one. InsertChanges is durable once
// it returns nil, and idempotent per token for the same rows.
type Audits interface {
	InsertChanges(ctx context.Context, token string, rows []change.Audit) error
}

// Auditor writes accepted changes to the audit table, whether or not they can be applied;
// those that cannot are also dead-lettered.
type Auditor struct{ audits Audits }

func NewAuditor(audits Audits) *Auditor { return &Auditor{audits: audits} }

// WriteDown audits the changes in messages of lane 0 and skips anything else. It is
// idempotent for the same messages.
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
		return fmt.Errorf("audit changes: %w", err)
	}
	return nil
}

// token is the deduplication token of messages.
func token(messages []flow.Message) string {
	hash := sha256.New()
	for _, m := range messages {
		sum := sha256.Sum256(m.Body)
		hash.Write(sum[:])
	}
	first, last := messages[0].Seq, messages[len(messages)-1].Seq
	return fmt.Sprintf("changes:%d-%d:%s", first, last, hex.EncodeToString(hash.Sum(nil)[:16]))
}
