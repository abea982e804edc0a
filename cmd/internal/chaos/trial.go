package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"sluice/pkg/programtest"
)

// ErrBroken is what Run returns when a promise was broken.
var ErrBroken = errors.New("not exactly what was acknowledged is stored")

// Result is what a run has done and found.
type Result struct {
	Findings
	Counts
	Counters         // against the rows, and what the exporters know
	Folds     int    // compared
	Differ    int    // of them, that are not what the records make
	Again     int64  // records acknowledged although they had been before
	FallBacks int    // of exporters
	Verified  bool   // sluice verify accounts for everything too
	Dead      uint64 // records set aside; none of those posted should be
	Void      uint64 // records of entries that came too late to count
	Mended    int    // inserts that a kill of the engine had left half-way
	Duration  time.Duration
	Drain     time.Duration // from the last fault until everything was stored
	Seed      uint64
	NATS      int
}

// String is the result in one line.
func (r Result) String() string {
	s := fmt.Sprintf("acked=%d again=%d stored=%d unique=%d counted=%d lost=%d doubled=%d never-sent=%d dead=%d folds=%d/%d verified=%v kills=%d stops=%d restarts=%d cuts=%d",
		r.Acked, r.Again, r.Stored, r.Unique, r.Counted, r.Lost+r.Below, max(r.Doubled, r.Above), r.Strangers, r.Dead, r.Folds-r.Differ, r.Folds, r.Verified,
		r.Kills, r.Stops, r.Restarts, r.Cuts)
	return s + fmt.Sprintf(" fall-backs=%d fills=%d wipes=%d lanes-added=%d lanes-filled=%d spreads=%d clocks=%d freezes=%d void=%d mended=%d crashes=%d unclean=%d abandoned=%d drain=%v duration=%v nats=%d seed=%d",
		r.FallBacks, r.Fills, r.Wipes, r.Lanes, r.FullLanes, r.Spreads, r.Steps, r.Freezes, r.Void, r.Mended, r.Crashes, r.Unclean, r.Abandoned, r.Drain.Round(time.Millisecond), r.Duration.Round(time.Second), r.NATS, r.Seed)
}

// Clean tells whether every promise was kept.
func (r Result) Clean() bool {
	return r.Findings.Clean() && r.Above == 0 && r.Below == 0 && r.Differ == 0 && r.Dead == 0 && r.Verified
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

	if cfg.Bin == "" {
		cfg.Bin = filepath.Join(dir, "bin")
		if err := Build(ctx, cfg.Bin); err != nil {
			return Result{}, err
		}
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
	j.note("all services are ready, seed %d, in %s", cfg.Seed, dir)
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
	posting, enough := context.WithTimeout(ctx, s.cfg.For+s.patience())
	defer enough()
	var all *truth
	failed := make(chan error, 1)
	go func() {
		var err error
		all, err = s.post(posting)
		failed <- err
	}()
	breaking, heal := context.WithTimeout(ctx, s.cfg.For)
	defer heal()
	b := &breaker{stage: s, view: v}
	b.run(breaking, schedule)
	<-breaking.Done()
	for _, name := range s.order {
		b.again(s.services[name])
	}
	for _, f := range schedule {
		if f.kind == spread { // one that is in the middle is given up, as its operator would
			b.operate(ctx, "stay "+f.target, func(*Counts) {}, "lanes", "spread", f.target, "--stay")
		}
	}
	s.journal.note("healed: no more faults")
	healed := time.Now()
	if err := <-failed; err != nil {
		return Result{}, err
	}
	if ctx.Err() != nil {
		return Result{}, ctx.Err()
	}

	draining, cancel := context.WithTimeout(ctx, s.patience())
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
	result.Abandoned = int(all.abandoned())
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
	log, err := os.ReadFile(filepath.Join(s.dir, "logs", serviceEngine+".log"))
	return bytes.Count(log, []byte("an insert was not finished")), err
}

func orYes(err error) string {
	if err != nil {
		return err.Error()
	}
	return "yes"
}

// patience is how long what is left may take after the last fault.
func (s *stage) patience() time.Duration { return 5*time.Minute + s.cfg.For/3 }

// compare looks at the tables.
func (s *stage) compare(ctx context.Context, v *view, all *truth) (Result, error) {
	t, err := openTables(s.engine, "flow")
	if err != nil {
		return Result{}, err
	}
	defer t.close()
	r, err := t.judge(ctx, all, s.journal)
	if err != nil {
		return r, err
	}
	r.Again, r.FallBacks = all.exported.again, all.exported.fallbacks
	if r.Dead, err = v.dead(ctx); err != nil {
		return r, err
	}
	if r.Void, err = v.void(ctx); err != nil {
		return r, err
	}
	r.Verified, err = s.verify(ctx)
	return r, err
}

// judge compares everything that is stored with the truth.
func (t *tables) judge(ctx context.Context, all *truth, j *journal) (r Result, err error) {
	if r.Findings, err = t.compare(ctx, all, j); err != nil {
		return r, err
	}
	if r.Counters, err = t.counters(ctx); err != nil {
		return r, err
	}
	for source, p := range all.sources {
		if p.counts == nil {
			continue
		}
		c, err := t.countersOf(ctx, source, p.counts)
		if err != nil {
			return r, err
		}
		r.Above, r.Below = max(r.Above, c.Above), max(r.Below, c.Below)
		r.Counters.Named = append(r.Counters.Named, c.Named...)
	}
	folds, differ, err := t.folds(ctx)
	r.Folds, r.Differ = folds, len(differ)
	for _, line := range slices.Concat(r.Findings.Named, firstOnes(r.Counters.Named), differ) {
		j.note("%s", line)
	}
	return r, err
}

// verify asks sluice verify, which compares the lanes with the tables.
func (s *stage) verify(ctx context.Context) (bool, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.cfg.Bin, "sluice"), "verify", "--deep", "--repeat-window", s.cfg.RepeatWindow.String(),
		"--nats", natsURL(s.natsAddrs), "--clickhouse", "clickhouse://default@"+s.engine+"/flow")
	cmd.Dir, cmd.Env = s.dir, programtest.Environ() // not where a ./data may have secrets of another installation
	out, err := cmd.CombinedOutput()
	s.journal.note("sluice verify:\n%s", bytes.TrimSpace(out))
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return false, nil
	}
	return err == nil, err
}
