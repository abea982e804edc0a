// Command soak runs Sluice as processes under a steady load for a long time
// and watches what should not grow: memory, goroutines, open files, parts in
// ClickHouse, what waits. In the end every record is there once. It exits 0
// only if nothing grew beyond its bound and the counts are exact.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"sluice/cmd/internal/parts"
	"sluice/pkg/load"
	"sluice/pkg/programtest"
)

// config says how hard and how long. It is the command line.
type config struct {
	For       time.Duration `default:"30m" help:"How long to post."`
	Rate      float64       `default:"3000" help:"Records per second."`
	Every     time.Duration `default:"10s" help:"Time between two samples."`
	Freshness time.Duration `default:"1s" help:"Longest time from when 99 of 100 records are taken in until they can be queried."`
	Seed      uint64        `default:"1" help:"Decides the records."`

	out   io.Writer // gets one line per sample
	build func(ctx context.Context, bin string) error
}

// leastSamples is what a judgement of growth needs.
const leastSamples = 9

func (c config) check() error {
	if c.Every <= 0 || c.Rate <= 0 || c.Freshness <= 0 || c.Seed == 0 {
		return errors.New("a rate, an interval, a bound of freshness and a seed are needed")
	}
	if c.For < leastSamples*c.Every {
		return errors.New("too short: nine samples are the least that can be judged")
	}
	return nil
}

func main() {
	var cfg config
	kong.Parse(&cfg, kong.Name("soak"), kong.Description("Runs Sluice under a steady load and watches what should not grow."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg.out, cfg.build = os.Stdout, programtest.Build
	if err := soak(ctx, cfg); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// errUnsteady is what soak returns when something grew, was late or is not
// exact.
var errUnsteady = errors.New("not steady")

// soak posts, watches and judges. The folder with data and logs stays when the
// error is not nil.
func soak(ctx context.Context, cfg config) (err error) {
	if err := cfg.check(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sluice-soak-")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(dir)
		} else {
			err = fmt.Errorf("%w (data and logs are in %s)", err, dir)
		}
	}()
	bin := filepath.Join(dir, "bin")
	if err := cfg.build(ctx, bin); err != nil {
		return err
	}
	running, err := parts.Start(ctx, bin, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, running.Stop()) }()
	s := &stage{running}
	return s.run(ctx, cfg)
}

// stage is the deployment that is watched.
type stage struct{ *parts.Stage }

// run posts and looks at the same time, and then compares.
func (s *stage) run(ctx context.Context, cfg config) error {
	type outcome struct {
		load.Report
		err error
	}
	posted := make(chan outcome, 1)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		report, err := load.Run(ctx, load.Config{
			URL: s.URL, Token: s.Token, Duration: cfg.For, Rate: cfg.Rate, Batch: 100, Seed: cfg.Seed,
		})
		posted <- outcome{report, err}
	}()
	samples, whole, err := s.watch(ctx, cfg)
	if err != nil {
		stop()
		<-posted
		return err
	}
	o := <-posted
	if o.err != nil {
		return o.err
	}
	if err := o.WriteText(cfg.out); err != nil {
		return err
	}
	if err := s.exact(ctx, o.Acked); err != nil {
		return err
	}
	grown := growth(samples)
	late := whole.quantile(0.99)
	if !(late <= cfg.Freshness.Seconds()) {
		grown = append(grown, fmt.Sprintf("99 of 100 records could be queried after %v s, at most %v is right", late, cfg.Freshness))
	}
	if len(grown) > 0 {
		return fmt.Errorf("%w: %q", errUnsteady, grown)
	}
	_, err = fmt.Fprintf(cfg.out, "steady: %d records, each stored once; 99 of 100 could be queried within %v s\n", o.Acked.Records, late)
	return err
}

// watch takes samples for as long as is posted. The histogram is of all that
// was stored meanwhile.
func (s *stage) watch(ctx context.Context, cfg config) ([]sample, histogram, error) {
	began := time.Now()
	if _, err := io.WriteString(cfg.out, header()); err != nil {
		return nil, nil, err
	}
	var samples []sample
	var last histogram
	for at := cfg.Every; at <= cfg.For; at += cfg.Every {
		if !sleep(ctx, time.Until(began.Add(at))) {
			return nil, nil, ctx.Err()
		}
		seen, now, err := s.look(ctx, last)
		if err != nil {
			return nil, nil, err
		}
		samples, last = append(samples, seen), now
		if _, err := io.WriteString(cfg.out, row(int(at.Seconds()), seen)); err != nil {
			return nil, nil, err
		}
	}
	return samples, last, nil
}

// exact waits until what was acknowledged is what is stored.
func (s *stage) exact(ctx context.Context, acked load.Totals) error {
	var got string
	for range 300 {
		var err error
		if got, err = s.Query(ctx, acked.Query()); err != nil {
			return err
		}
		if got == acked.Row() {
			return nil
		}
		if !sleep(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%w: %s gives %s, acknowledged was %s", errUnsteady, acked.Query(), got, acked.Row())
}

// sleep tells whether d passed before ctx was done.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
