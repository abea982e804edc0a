package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sluice/cmd/internal/audit/verify"
	"sluice/cmd/internal/deployment"
	"sluice/pkg/load/camunda"
)

// Config has the options of the scenario chaos, and settings of tests.
type Config struct {
	For            time.Duration `default:"30m" help:"Duration of load and faults."`
	Seed           uint64        `help:"Seed of faults and records; a random one when 0. The same seed has the same schedule."`
	NATS           int           `name:"nats" enum:"1,3" default:"1" help:"NATS servers: 1, or 3 with three replicas of every stream."`
	Rate           float64       `default:"6000" help:"Records per second to post."`
	Every          time.Duration `default:"2.5s" help:"Mean time between two faults."`
	StreamMaxBytes int64         `default:"1073741824" help:"Disk budget of a lane in bytes; a small one causes 429."`
	SmallDisk      bool          `help:"Also fill the disks of NATS and of the engine. Needs root: it mounts file systems in memory."`
	Brokers        bool          `help:"Post only through the exporters of a simulated Camunda cluster of three partitions, whose brokers fail too."`
	Outage         time.Duration `help:"Instead of random faults: stop the engine for this time in the middle of the run."`
	RepeatWindow   time.Duration `default:"5m" help:"Deduplication window of requests; shorter than the programs' default, so that a run exceeds it."`
	Faults         []string      `help:"Operations in addition to random faults, by name, or none; a run fails unless it carries out each. Default: those that are on in operations.go."`
	Dir            string        `type:"path" help:"Folder for data and logs; a temporary one when empty. It stays after a failure."`
	Keep           bool          `help:"Always keep the folder."`

	Bin     string    `kong:"-"` // folder of the programs, with clocks; built when empty
	Journal io.Writer `kong:"-"` // one line per fault
}

func (c *Config) Run(ctx context.Context) error {
	c.Journal = os.Stdout
	return report(chaos(ctx, *c))
}

func chaos(ctx context.Context, cfg Config) (Result, error) {
	if cfg.Seed == 0 {
		cfg.Seed = rand.Uint64N(1_000_000)
	}
	asked, err := cfg.operations()
	if err != nil {
		return Result{}, err
	}
	r, err := try(ctx, cfg, cfg.posts(), func(ctx context.Context, s *site) error {
		for _, o := range asked {
			s.journal.expect(o.name)
		}
		err := s.carryOutAll(ctx, plan(cfg, s.Deployment))
		if err == nil {
			<-ctx.Done()
		}
		return err
	})
	if err == nil {
		err = cfg.injected(r.Done)
	}
	return r, err
}

// streams returns the options of every program that may create a stream.
func (c Config) streams() []string {
	return []string{"--stream-max-bytes", fmt.Sprint(c.StreamMaxBytes), "--stream-replicas", fmt.Sprint(c.NATS), "--repeat-window", c.RepeatWindow.String()}
}

// history is the time for which lanes keep stored messages: a sixth of the run.
func (c Config) history() time.Duration { return c.For / 6 }

// deployment has two of every process that faults stop. Blocks are small, so that some are
// full after every outage. Full blocks are inserted as concurrent pieces, and taken over by
// an ingester with another number of pieces.
func (c Config) deployment(dir string, sources []string) deployment.Config {
	return deployment.Config{
		Bin: c.Bin, Dir: dir, NATS: c.NATS, APIs: 2, Ingesters: 2, Exporters: true, Links: true, Clocks: true, Sources: sources,
		Subjects: map[string]string{twins[0]: "twins", twins[1]: "twins"},
		Options: map[string][]string{
			deployment.API:             c.streams(),
			deployment.Ingester:        append(c.streams(), "--history", c.history().String(), "--block-bytes", "1048576", "--block-inserts", "2"),
			deployment.Ingester + "-2": {"--block-inserts", "3"},
		},
	}
}

var ErrBroken = errors.New("the stored records differ from the acknowledged ones")

type Result struct {
	Findings
	Again       int64  // records acknowledged more than once
	Failures    int64  // of simulated brokers
	Abandoned   int64  // records that clients stopped retrying
	Verified    bool   // sluice verify accounts for every record
	Dead        uint64 // dead letters that were not replayed
	Void        uint64 // records of void entries
	Interrupted int    // inserts that a kill of the engine interrupted
	Done        counts // faults by kind
	Duration    time.Duration
	Drain       time.Duration // from the last fault until everything was stored
	Seed        uint64
	NATS        int
}

func (r Result) String() string {
	return fmt.Sprintf("acked=%d again=%d stored=%d counted=%d lost=%d doubled=%d never-sent=%d dead=%d aggregates=%d/%d verified=%v broker-failures=%d void=%d fixed=%d abandoned=%d drain=%v duration=%v nats=%d seed=%d; %v",
		r.Acked, r.Again, r.Stored, r.Counted, max(r.Lost, r.Below), max(r.Doubled, r.Above), r.Strangers, r.Dead, r.Views-r.Differ, r.Views, r.Verified,
		r.Failures, r.Void, r.Interrupted, r.Abandoned, r.Drain.Round(time.Millisecond), r.Duration.Round(time.Second), r.NATS, r.Seed, r.Done)
}

func (r Result) Clean() bool {
	return r.Findings.Clean() && r.Dead == 0 && r.Verified
}

// try starts a deployment, posts, injects faults, heals them, and compares the stored
// records with the acknowledged ones. It returns ErrBroken when they differ, or when the
// backlog was not stored after healing; then the folder is kept.
func try(ctx context.Context, cfg Config, all posting, breaks func(context.Context, *site) error) (result Result, err error) {
	dir, err := folder(cfg.Dir)
	if err != nil {
		return Result{}, err
	}
	file, err := os.Create(filepath.Join(dir, "journal"))
	if err != nil {
		return Result{}, err
	}
	defer file.Close()
	j := newJournal(io.MultiWriter(file, cfg.Journal))
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
		if err := deployment.BuildWithClocks(ctx, cfg.Bin); err != nil {
			return Result{}, err
		}
	}
	s, err := newSite(ctx, cfg, dir, all.sources(), j)
	if s != nil {
		defer s.close()
	}
	if err != nil {
		return Result{}, err
	}
	j.note("all processes are ready, seed %d, in %s", cfg.Seed, dir)
	result, err = s.try(ctx, all, breaks)
	result.Seed, result.NATS, result.Done = cfg.Seed, cfg.NATS, j.sum()
	return result, err
}

func newSite(ctx context.Context, cfg Config, dir string, sources []string, j *journal) (*site, error) {
	d, err := deployment.New(cfg.deployment(dir, sources))
	s := &site{Deployment: d, cfg: cfg, journal: j, disks: map[string]*disk{}, ledgers: map[string]*ledger{}, healed: make(chan struct{})}
	if err != nil {
		return s, err
	}
	for _, source := range sources {
		if s.ledgers[source], err = newLedger(s.Dir, source); err != nil {
			return s, err
		}
	}
	for _, p := range d.Processes {
		p.Ended = s.crashed
	}
	if cfg.SmallDisk {
		if err := s.mount(); err != nil {
			return s, err
		}
	}
	return s, d.Start(ctx)
}

func folder(name string) (string, error) {
	if name != "" {
		return name, os.MkdirAll(name, 0o700)
	}
	return os.MkdirTemp("", "sluice-chaos-")
}

func (s *site) try(ctx context.Context, all posting, breaks func(context.Context, *site) error) (Result, error) {
	began := time.Now()
	posting, enough := context.WithCancel(ctx)
	defer enough()
	var exported camunda.Count
	failed := make(chan error, 1)
	go func() {
		var err error
		exported, err = s.post(posting, all)
		failed <- err
	}()
	breaking, heal := context.WithTimeout(ctx, s.cfg.For)
	defer heal()
	failure := breaks(breaking, s)
	close(s.healed)
	if failure != nil {
		enough()
		<-failed
		return Result{}, failure
	}
	defer time.AfterFunc(2*s.patience(), enough).Stop()
	for _, p := range s.Processes {
		s.start(p)
	}
	if err := s.stay(ctx); err != nil {
		return Result{}, err
	}
	s.journal.note("healed: no more faults")
	healed := time.Now()
	if err := errors.Join(<-failed, ctx.Err()); err != nil {
		return Result{}, err
	}
	draining, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	stuck := s.WaitStored(draining)
	if s.journal.sum()["dead-replay"] > 0 { // letters of blocks claimed before the constraint was dropped
		stuck = errors.Join(stuck, s.replayLetters(draining), s.WaitStored(draining))
	}
	drain := time.Since(healed)
	s.journal.note("drained: %v", orYes(stuck))
	result, err := s.compare(ctx)
	result.Again, result.Failures, result.Abandoned = exported.Again, exported.Failures, s.abandoned()
	result.Duration, result.Drain = time.Since(began), drain
	if err != nil {
		return result, err
	}
	if err := s.Stop(); err != nil {
		s.journal.count(unclean)
		s.journal.note("%v", err)
	}
	result.Interrupted = strings.Count(s.Process(deployment.Engine).Output(), "dropped the token of an insert")
	switch {
	case stuck != nil:
		return result, fmt.Errorf("%w: %w", ErrBroken, stuck)
	case !result.Clean():
		return result, ErrBroken
	}
	return result, nil
}

func orYes(err error) string {
	if err != nil {
		return err.Error()
	}
	return "yes"
}

// patience bounds a step of an operation, and the drain after the last fault.
func (s *site) patience() time.Duration { return 5*time.Minute + s.cfg.For/3 }

// compare recounts the days that sluice verify lists as in doubt, as its report says, compares the tables with the
// ledgers, and runs sluice verify again.
func (s *site) compare(ctx context.Context) (r Result, err error) {
	account, err := s.verify(ctx)
	for _, day := range account.Recount {
		err = errors.Join(err, s.operate(ctx, s.withTables("recount", day)...))
	}
	if err != nil {
		return r, err
	}
	t := tables{s.Rows, "flow"}
	if r.Findings, err = t.judge(ctx, slices.Collect(maps.Values(s.ledgers))); err != nil {
		return r, err
	}
	for _, line := range r.Named {
		s.journal.note("%s", line)
	}
	if r.Doubled > 0 {
		rows, err := s.Query(ctx, trace)
		s.journal.note("doubled rows (%v):\n%s", orYes(err), rows)
	}
	account, err = s.verify(ctx)
	total, purged := account.Total(), account.Purged()
	r.Verified, r.Void = account.OK, total.Void+purged.Void
	letters, failed := s.deadLetters(ctx)
	r.Dead = letters
	return r, errors.Join(err, failed)
}

// verify runs sluice verify. Its findings are in the report, not in the error.
func (s *site) verify(ctx context.Context) (r verify.Report, err error) {
	err = s.insist(ctx, "sluice verify", func(ctx context.Context) error {
		out, err := s.Verify(ctx, "--json", "--repeat-window", s.cfg.RepeatWindow.String())
		if json.Unmarshal([]byte(out), &r) != nil { // NATS or ClickHouse cannot be reached
			return errors.Join(err, fmt.Errorf("sluice verify printed no report: %s", out))
		}
		return nil
	})
	if err != nil {
		return r, err
	}
	for i := range r.Lanes {
		r.Lanes[i].Minutes = nil
	}
	var text bytes.Buffer
	_ = json.NewEncoder(&text).Encode(r) // cannot fail: it was decoded from JSON
	s.journal.note("sluice verify: %s", bytes.TrimSpace(text.Bytes()))
	return r, nil
}
