package measure

import (
	"context"
	"fmt"
	"time"

	"sluice/cmd/internal/parts"
	"sluice/pkg/load"
)

// job is a load that is run several times.
type job struct {
	name string
	load load.Config
	took func(pass) error // is given every run but the warm-up

	// beside begins something that goes on beside a run until it is ended; nil
	// when there is nothing.
	beside func(context.Context) (end func() error, err error)
}

// repeat makes a warm-up and then the runs of a job, when the merges that the
// job before has left behind are done.
func (b *bench) repeat(ctx context.Context, s *parts.Stage, j job) error {
	if err := b.settle(ctx, s); err != nil {
		return err
	}
	warm := j.load
	if warm.Duration > 0 {
		warm.Duration = max(warm.Duration/4, 200*time.Millisecond)
	} else {
		warm.Records = min(b.plan.warmUp, warm.Records)
	}
	if _, err := b.pass(ctx, s, warm); err != nil {
		return fmt.Errorf("%s: warm-up: %w", j.name, err)
	}
	for n := range b.plan.runs {
		p, err := b.once(ctx, s, j)
		if err == nil {
			b.note("%s, run %d of %d: %s rec/s, ack p99 %s ms, %s CPU-s per million", j.name, n+1, b.plan.runs,
				number(p.StoredPerSec), number(p.Latency.P99*1e3), number(p.ours()))
			err = j.took(p)
		}
		if err != nil {
			return fmt.Errorf("%s: run %d: %w", j.name, n+1, err)
		}
	}
	return nil
}

// once is one run, and what goes on beside it.
func (b *bench) once(ctx context.Context, s *parts.Stage, j job) (pass, error) {
	if j.beside == nil {
		return b.pass(ctx, s, j.load)
	}
	end, err := j.beside(ctx)
	if err != nil {
		return pass{}, err
	}
	p, err := b.pass(ctx, s, j.load)
	if endErr := end(); err == nil {
		err = endErr
	}
	return p, err
}
