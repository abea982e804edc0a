package state

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"sluice/pkg/change"
	"sluice/pkg/option"
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

// SweepConfig says which tombstones are old.
type SweepConfig struct {
	Tombstones time.Duration `default:"720h" help:"Forget dataset fields so long after they were deleted, once the stream holds no change of them."`
}

// NewSweeper makes a Sweeper.
func NewSweeper(cfg SweepConfig, store *Store, stream Forgets, log *slog.Logger, reg prometheus.Registerer) *Sweeper {
	option.Defaults(&cfg)
	return &Sweeper{store: store, stream: stream, age: cfg.Tombstones, log: log, swept: promauto.With(reg).NewCounter(prometheus.CounterOpts{
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
	for kv, err := range s.store.values(ctx, "field.>") {
		if err == nil {
			err = s.judge(ctx, kv)
		}
		if err != nil {
			return err
		}
	}
	return nil
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
