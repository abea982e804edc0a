package steady

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"sluice/cmd/internal/parts"
	"sluice/pkg/load"
	"sluice/pkg/programtest"
)

// ErrUnsteady is what Run returns when something grew, was late or is not
// exact.
var ErrUnsteady = errors.New("not steady")

// Run posts, watches and judges. The folder with data and logs stays when the
// error is not nil.
func Run(ctx context.Context, cfg Config) (err error) {
	if err := cfg.set(); err != nil {
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
	if err := programtest.Build(ctx, bin); err != nil {
		return err
	}
	running, err := parts.Start(ctx, bin, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, running.Stop()) }()
	s := &stage{running}
	return s.soak(ctx, cfg)
}

// stage is the deployment that is watched.
type stage struct{ *parts.Stage }

// soak posts and looks at the same time, and then compares.
func (s *stage) soak(ctx context.Context, cfg Config) error {
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
	if err := o.WriteText(cfg.Out); err != nil {
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
		return fmt.Errorf("%w: %q", ErrUnsteady, grown)
	}
	_, err = fmt.Fprintf(cfg.Out, "steady: %d records, each stored once; 99 of 100 could be queried within %v s\n", o.Acked.Records, late)
	return err
}

// watch takes samples for as long as is posted. The histogram is of all that
// was stored meanwhile.
func (s *stage) watch(ctx context.Context, cfg Config) ([]sample, histogram, error) {
	began := time.Now()
	if _, err := io.WriteString(cfg.Out, header()); err != nil {
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
		if _, err := io.WriteString(cfg.Out, row(int(at.Seconds()), seen)); err != nil {
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
	return fmt.Errorf("%w: %s gives %s, acknowledged was %s", ErrUnsteady, acked.Query(), got, acked.Row())
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
