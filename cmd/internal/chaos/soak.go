package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
	"sluice/pkg/programtest"
)

type Soak struct {
	For       time.Duration `default:"30m" help:"Duration of the load."`
	Rate      float64       `default:"3000" help:"Records per second."`
	Every     time.Duration `default:"10s" help:"Time between two samples."`
	Freshness time.Duration `default:"1s" help:"Maximum p99 of the time from acceptance of a record until it is queryable."`
	Seed      uint64        `default:"1" help:"Seed of the records."`

	Out   io.Writer                                   `kong:"-"` // one line per sample
	Build func(ctx context.Context, bin string) error `kong:"-"`
}

// minSamples is the minimum number of samples to judge growth.
const minSamples = 9

func (c *Soak) Validate() error {
	if c.Every <= 0 || c.Rate <= 0 || c.Freshness <= 0 || c.Seed == 0 {
		return errors.New("--rate, --every, --freshness, and --seed must be above 0")
	}
	if c.For < minSamples*c.Every {
		return fmt.Errorf("--for is too short: growth is judged by at least %d samples, one every --every", minSamples)
	}
	return nil
}

func (c *Soak) Run(ctx context.Context) error {
	c.Out, c.Build = os.Stdout, programtest.Build
	return soak(ctx, *c)
}

var errUnsteady = errors.New("not steady")

// soak posts, samples and judges. After an error the folder with data and logs is kept.
func soak(ctx context.Context, cfg Soak) (err error) {
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
	if err := cfg.Build(ctx, bin); err != nil {
		return err
	}
	d, err := deployment.Start(ctx, deployment.Config{Bin: bin, Dir: dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Stop()) }()

	var report load.Report
	var samples []sample
	var whole histogram
	work, working := errgroup.WithContext(ctx)
	work.Go(func() (err error) {
		report, err = load.Run(working, load.Config{
			URL: d.URL, Token: d.Token, Duration: cfg.For, Rate: cfg.Rate, Batch: 100, Seed: cfg.Seed,
			Stored: load.StoredIn(d.HTTP), // every record is stored exactly once
		})
		return err
	})
	work.Go(func() (err error) {
		samples, whole, err = watch(working, d, cfg)
		return err
	})
	if err := work.Wait(); err != nil {
		return err
	}
	if err := report.WriteText(cfg.Out); err != nil {
		return err
	}
	grown := growth(samples)
	late := whole.quantile(0.99)
	if !(late <= cfg.Freshness.Seconds()) {
		grown = append(grown, fmt.Sprintf("p99 of freshness is %v s, at most %v is right", late, cfg.Freshness))
	}
	if len(grown) > 0 {
		return fmt.Errorf("%w: %s", errUnsteady, strings.Join(grown, "; "))
	}
	_, err = fmt.Fprintf(cfg.Out, "steady: %d records, each stored once; p99 of freshness %v s\n", report.Acked.Records, late)
	return err
}

// watch takes samples during the load. The histogram covers the whole load.
func watch(ctx context.Context, d *deployment.Deployment, cfg Soak) (samples []sample, last histogram, err error) {
	began := time.Now()
	fmt.Fprint(cfg.Out, header())
	for at := cfg.Every; at <= cfg.For; at += cfg.Every {
		if !deployment.Sleep(ctx, time.Until(began.Add(at))) {
			return nil, nil, ctx.Err()
		}
		seen, now, err := look(ctx, d, last)
		if err != nil {
			return nil, nil, err
		}
		samples, last = append(samples, seen), now
		fmt.Fprint(cfg.Out, row(int(at.Seconds()), seen))
	}
	return samples, last, nil
}
