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
	"sluice/pkg/record"
)

// Audits is where it is written down who changed what. *warehouse.DB is the
// real one. InsertChanges is durable once it returns nil, and idempotent per
// token as long as the rows are the same.
type Audits interface {
	InsertChanges(ctx context.Context, token string, rows []change.Audit) error
}

// writers is how many entries are written at the same time: a write waits for
// the disk, not for the processor.
const writers = 16

// Applier applies the changes of the stream to a Store, and writes them down.
type Applier struct {
	store  *Store
	audits Audits
	m      *metrics
}

// NewApplier makes an Applier.
func NewApplier(store *Store, audits Audits, reg prometheus.Registerer) *Applier {
	return &Applier{store: store, audits: audits, m: newMetrics(reg)}
}

// Apply applies the changes that messages of lane 0 hold, in order. It is
// idempotent: after any error, and after a crash anywhere, the same messages
// come again. When one of them can never be applied it returns a
// *record.StoreError of ClassPoison; then, too, some may be applied.
func (a *Applier) Apply(ctx context.Context, messages []record.Message) error {
	if len(messages) == 0 {
		return nil
	}
	start := time.Now()
	pending, rows, err := decodeAll(messages)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(writers)
	for key, steps := range pending {
		g.Go(func() error { return a.applyTo(ctx, key, steps) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	// Applied. A crash here applies nothing the second time, and writes down.
	if err := a.audits.InsertChanges(ctx, token(messages), rows); err != nil {
		return fmt.Errorf("write down changes: %w", err)
	}
	a.m.seconds.Observe(time.Since(start).Seconds())
	return nil
}

// Incarnation is the Store's.
func (a *Applier) Incarnation(ctx context.Context) (uint64, error) { return a.store.Incarnation(ctx) }

// step is a change and where it stands in the stream.
type step struct {
	change change.Change
	place  change.Place
}

// decodeAll gives the changes of every target, in order, and what is to be
// written down of them.
func decodeAll(messages []record.Message) (map[string][]step, []change.Audit, error) {
	pending := make(map[string][]step)
	rows := make([]change.Audit, 0, len(messages))
	for _, m := range messages {
		c, err := change.Decode(m.Body)
		if err != nil {
			return nil, nil, refused(err)
		}
		key := c.Target.Key()
		if !strings.HasSuffix(m.Topic, ".change."+key) {
			return nil, nil, refused(&change.BadChangeError{Code: "wrong_topic", Reason: "the change is published under another target's name"})
		}
		pending[key] = append(pending[key], step{c, change.Place{Incarnation: m.Incarnation, Seq: m.Seq}})
		rows = append(rows, c.Audit(m.Seq))
	}
	return pending, rows, nil
}

// applyTo applies all changes of one target with one write.
func (a *Applier) applyTo(ctx context.Context, key string, steps []step) error {
	repeated := 0
	err := a.store.update(ctx, key, func(e change.Entry) (change.Entry, bool, error) {
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
func refused(err error) error { return &record.StoreError{Class: record.ClassPoison, Err: err} }

// token names the messages: the same for the same ones.
func token(messages []record.Message) string {
	hash := sha256.New()
	for _, m := range messages {
		sum := sha256.Sum256(m.Body)
		hash.Write(sum[:])
	}
	first, last := messages[0].Seq, messages[len(messages)-1].Seq
	return fmt.Sprintf("changes:%d-%d:%s", first, last, hex.EncodeToString(hash.Sum(nil)[:16]))
}
