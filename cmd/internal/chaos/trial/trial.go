package trial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"sluice/cmd/internal/parts"
)

// ErrBroken is what Run returns when a promise was broken.
var ErrBroken = errors.New("not exactly what was acknowledged is stored")

// Result is what a run has done and found.
type Result struct {
	Findings
	Counts
	Counted      int64  // sum of flow.counts_1m
	CountedAbove int64  // by so many the counters are above the records, minute by minute
	CountedBelow int64  // and below
	Dead         uint64 // records set aside; none of those posted should be
	Mended       int    // inserts that a kill of the engine had left half-way
	Duration     time.Duration
	Drain        time.Duration // from the last fault until everything was stored
	Seed         uint64
	NATS         int
}

// String is the result in one line.
func (r Result) String() string {
	s := fmt.Sprintf("acked=%d stored=%d unique=%d counted=%d lost=%d doubled=%d never-sent=%d dead=%d kills=%d stops=%d restarts=%d cuts=%d",
		r.Acked, r.Stored, r.Unique, r.Counted, r.Lost+r.CountedBelow, max(r.Doubled, r.CountedAbove), r.Strangers, r.Dead,
		r.Kills, r.Stops, r.Restarts, r.Cuts)
	return s + fmt.Sprintf(" fills=%d wipes=%d lanes-added=%d mended=%d crashes=%d unclean=%d abandoned=%d drain=%v duration=%v nats=%d seed=%d",
		r.Fills, r.Wipes, r.Lanes, r.Mended, r.Crashes, r.Unclean, r.Abandoned, r.Drain.Round(time.Millisecond), r.Duration.Round(time.Second), r.NATS, r.Seed)
}

// Clean tells whether every promise was kept.
func (r Result) Clean() bool {
	return r.Findings.Clean() && r.CountedAbove == 0 && r.CountedBelow == 0 && r.Dead == 0
}

// Run breaks a Sluice of its own for a while and compares what is stored with
// what was acknowledged. The error is ErrBroken when they differ, or when not
// everything could be stored after all was healed; then the folder with all
// data and logs stays.
func Run(ctx context.Context, cfg Config) (result Result, err error) {
	cfg = cfg.withDefaults()
	dir, err := folder(cfg.Dir)
	if err != nil {
		return Result{}, err
	}
	file, err := os.Create(filepath.Join(dir, "journal"))
	if err != nil {
		return Result{}, err
	}
	defer file.Close()
	j := &journal{began: time.Now(), out: io.MultiWriter(file, cfg.Journal)}
	defer func() {
		switch {
		case err != nil:
			j.note("data and logs are in %s", dir)
		case !cfg.Keep:
			err = os.RemoveAll(dir)
		}
	}()

	if err := parts.Build(ctx, filepath.Join(dir, "bin")); err != nil {
		return Result{}, err
	}
	s, err := newStage(cfg, dir, j)
	if s != nil {
		defer s.close()
	}
	if err != nil {
		return Result{}, err
	}
	v, err := newView(s)
	if err != nil {
		return Result{}, err
	}
	defer v.close()
	if err := s.start(ctx); err != nil {
		return Result{}, err
	}
	j.note("all parts are ready, seed %d, in %s", cfg.Seed, dir)
	result, err = s.try(ctx, v)
	result.Seed, result.NATS = cfg.Seed, cfg.NATS
	return result, err
}

func folder(name string) (string, error) {
	if name != "" {
		return name, os.MkdirAll(name, 0o700)
	}
	return os.MkdirTemp("", "sluice-chaos-")
}

// try posts and breaks at the same time, heals, and compares.
func (s *stage) try(ctx context.Context, v *view) (Result, error) {
	began := time.Now()
	schedule := plan(s.cfg, s.scene())
	var all posted
	failed := make(chan error, 1)
	go func() {
		var err error
		all, err = s.post(ctx)
		failed <- err
	}()
	breaking, heal := context.WithTimeout(ctx, s.cfg.For)
	defer heal()
	b := &breaker{stage: s, view: v}
	b.run(breaking, schedule)
	<-breaking.Done()
	for _, name := range s.order {
		b.again(s.parts[name])
	}
	s.journal.note("healed: no more faults")
	healed := time.Now()
	if err := <-failed; err != nil {
		return Result{}, err
	}
	if ctx.Err() != nil {
		return Result{}, ctx.Err()
	}

	draining, cancel := context.WithTimeout(ctx, 5*time.Minute+s.cfg.For/3)
	defer cancel()
	stuck := v.drained(draining)
	drain := time.Since(healed)
	s.journal.note("drained: %v", orYes(stuck))
	result, err := s.compare(ctx, v, all)
	result.Duration, result.Drain = time.Since(began), drain
	if err != nil {
		return result, err
	}
	s.stop()
	result.Counts = s.journal.sum()
	result.Abandoned = int(all.abandoned)
	if result.Mended, err = s.mended(); err != nil {
		return result, err
	}
	if stuck != nil {
		return result, fmt.Errorf("%w: %w", ErrBroken, stuck)
	}
	if !result.Clean() {
		return result, ErrBroken
	}
	return result, nil
}

// mended counts what the engine says it has mended at its starts.
func (s *stage) mended() (int, error) {
	log, err := os.ReadFile(filepath.Join(s.dir, "logs", partEngine+".log"))
	return bytes.Count(log, []byte("an insert was not finished")), err
}

func orYes(err error) string {
	if err != nil {
		return err.Error()
	}
	return "yes"
}

// compare looks at the tables.
func (s *stage) compare(ctx context.Context, v *view, all posted) (Result, error) {
	t, err := openTables(s.engine)
	if err != nil {
		return Result{}, err
	}
	defer t.close()
	stored, err := t.records(ctx)
	if err != nil {
		return Result{}, err
	}
	r := Result{Findings: Compare(all.acked, all.sent, stored)}
	if r.Counted, r.CountedAbove, r.CountedBelow, err = t.counters(ctx); err != nil {
		return r, err
	}
	if r.Dead, err = v.dead(ctx); err != nil {
		return r, err
	}
	if text := r.Text(); text != "" {
		s.journal.note("%s", text)
		trace, err := t.trace(ctx, r.DoubledAt)
		s.journal.note("%s%v", trace, orYes(err))
	}
	return r, nil
}
