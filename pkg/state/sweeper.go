package state

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"sluice/pkg/change"
)

// Forgets removes entries for good. *stream.Stream is the real one.
//
// LastChange tells of the newest change of a target that the stream still holds.
// ForgetState removes the entry under a key if it is of this revision or older.
type Forgets interface {
	LastChange(ctx context.Context, t change.Target) (change.Last, error)
	ForgetState(ctx context.Context, key string, revision uint64) error
}

// Sweeper removes tombstones that are old. Any number of Sweepers may run.
type Sweeper struct {
	store  *Store
	stream Forgets
	age    time.Duration
	log    *slog.Logger
	swept  prometheus.Counter
}

// sweepEvery is how often a Sweeper looks at all entries.
const sweepEvery = 6 * time.Hour

// NewSweeper makes a Sweeper of tombstones older than age; 0 is 30 days.
func NewSweeper(store *Store, stream Forgets, age time.Duration, log *slog.Logger, reg prometheus.Registerer) *Sweeper {
	return &Sweeper{store: store, stream: stream, age: cmp.Or(age, 30*24*time.Hour), log: log, swept: promauto.With(reg).NewCounter(prometheus.CounterOpts{
		Name: "sluice_state_tombstones_forgotten_total", Help: "Tombstones of dataset fields that were old enough to be removed.",
	})}
}

// Run sweeps soon, and then again and again until ctx ends.
func (s *Sweeper) Run(ctx context.Context) error {
	for pause := time.Minute; ; pause = sweepEvery {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("remove old tombstones", "error", err) // the next sweep goes on
		}
	}
}

// Sweep looks at every field once.
//
// A tombstone is what keeps an old PUT from coming back: while the stream holds
// a change of the field, which a lane that is read again would apply, it stays.
// After that it says nothing that is not so without it.
func (s *Sweeper) Sweep(ctx context.Context) error {
	bucket, err := s.store.bucket()
	if err != nil {
		return err
	}
	watch, err := bucket.WatchFiltered(ctx, []string{"field.>"}, jetstream.IgnoreDeletes())
	if err != nil {
		return unavailable("list the entries", err)
	}
	defer func() { _ = watch.Stop() }()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case kv, ok := <-watch.Updates():
			if !ok || kv == nil {
				return nil
			}
			if err := s.judge(ctx, kv); err != nil {
				return err
			}
		}
	}
}

// judge removes an entry if it is an old tombstone.
func (s *Sweeper) judge(ctx context.Context, kv jetstream.KeyValueEntry) error {
	e, err := decode(kv)
	if err != nil || !e.Deleted || time.Since(e.DeletedAt) < s.age {
		return nil // a damaged entry is for those who read it
	}
	last, err := s.stream.LastChange(ctx, e.Target)
	if err != nil || last.Seq != 0 {
		return err
	}
	if err := s.stream.ForgetState(ctx, kv.Key(), kv.Revision()); err != nil {
		return fmt.Errorf("remove the tombstone of revision %d: %w", kv.Revision(), err)
	}
	// Removed, unless the field was put meanwhile: that is another revision.
	s.swept.Inc()
	return nil
}
