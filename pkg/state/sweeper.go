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

// Forgets removes entries permanently. *stream.Stream is the real one.
//
// LastChange returns the newest change of a target in the stream. ForgetState removes the
// entry under a key if it is of this revision or older.
type Forgets interface {
	LastChange(ctx context.Context, t change.Target) (change.Last, error)
	ForgetState(ctx context.Context, key string, revision uint64) error
}

// Sweeper removes old tombstones. Several may run concurrently.
type Sweeper struct {
	store  *Store
	stream Forgets
	age    time.Duration
	log    *slog.Logger
	swept  prometheus.Counter
}

// sweepEvery is the interval of sweeps.
const sweepEvery = 6 * time.Hour

// SweepConfig is the retention of tombstones.
type SweepConfig struct {
	Tombstones time.Duration `default:"720h" help:"Remove the tombstones of deleted dataset fields after this time, once the stream holds no change of them."`
}

func NewSweeper(cfg SweepConfig, store *Store, stream Forgets, log *slog.Logger, reg prometheus.Registerer) *Sweeper {
	option.Defaults(&cfg)
	return &Sweeper{store: store, stream: stream, age: cfg.Tombstones, log: log, swept: promauto.With(reg).NewCounter(prometheus.CounterOpts{
		Name: "sluice_state_tombstones_forgotten_total", Help: "Tombstones of dataset fields removed after their retention.",
	})}
}

// Run sweeps soon after its start, then periodically until ctx ends.
func (s *Sweeper) Run(ctx context.Context) error {
	for pause := time.Minute; ; pause = sweepEvery {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("remove old tombstones", "error", err) // the next sweep resumes
		}
	}
}

// Sweep checks every field once.
//
// A tombstone prevents an old PUT from reviving its field: it stays while the stream holds
// a change of the field, which a second reading of the lane would apply.
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
		return nil // readers report the corrupt entry
	}
	last, err := s.stream.LastChange(ctx, e.Target)
	if err != nil || last.Seq != 0 {
		return err
	}
	if err := s.stream.ForgetState(ctx, kv.Key(), kv.Revision()); err != nil {
		return fmt.Errorf("remove the tombstone of revision %d: %w", kv.Revision(), err)
	}
	// Removed, unless the field was put concurrently, at another revision.
	s.swept.Inc()
	return nil
}
