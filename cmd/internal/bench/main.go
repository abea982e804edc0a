// Command bench posts to a Sluice of its own, in separate processes, and measures
// what the goals of the project are about: CPU per record, rate, waits, memory,
// allocations and bytes. It writes what it saw as docs/performance.md.
//
// It exits 0 only if after every run exactly what was acknowledged is stored; that a
// goal is missed is a finding, not a failure.
//
// It is a module of its own, because its plots need fonts and writers of formats
// that no program of Sluice does.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"sluice/cmd/internal/parts"
	"sluice/pkg/programtest"
)

func main() {
	var cfg config
	kong.Parse(&cfg, kong.Name("bench"), kong.Description("Measures Sluice and writes docs/performance.md."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg.command, cfg.log = command(os.Args[1:]), os.Stdout
	if _, err := measure(ctx, cfg); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command is what to type to do the same again.
func command(args []string) string {
	if len(args) == 0 {
		return "make bench"
	}
	return fmt.Sprintf("make bench ARGS=%q", strings.Join(args, " "))
}

// bench is a measurement under way.
type bench struct {
	cfg  config
	plan plan
	dir  string // of everything; removed in the end
	seed uint64 // of the records of the latest run
	warm bool   // a load has warmed up

	began time.Time
}

// measure measures, writes the page and returns what stands on it. The error wraps
// load.ErrNotStored when something else than what was acknowledged is stored;
// then nothing is written, and the folder with data and logs stays.
func measure(ctx context.Context, cfg config) (_ Page, err error) {
	p, err := cfg.plan()
	if err != nil {
		return Page{}, err
	}
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return Page{}, err
	}
	b := &bench{cfg: cfg, plan: p, dir: dir, began: time.Now()}
	defer func() {
		if err == nil || ctx.Err() != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		} else {
			err = fmt.Errorf("%w (data and logs are in %s)", err, dir)
		}
	}()
	page := Page{Command: cfg.command, Short: cfg.Short, Runs: p.runs, Records: float64(p.records), Began: b.began}
	if page.Machine, err = lookAround(ctx, dir, p.watch); err != nil {
		return Page{}, err
	}
	build := programtest.Build
	if cfg.Short {
		build = programtest.BuildPlain
	}
	if err := build(ctx, filepath.Join(dir, "bin")); err != nil {
		return Page{}, err
	}
	if cfg.Only == "" || cfg.Only == onlyCapacity {
		if err := b.capacity(ctx, page.Machine); err != nil {
			return Page{}, err
		}
	}
	if cfg.Only == onlyCapacity {
		return page, nil // no page is made of it
	}
	if cfg.Only == onlyDelay {
		if cfg.Short {
			b.plan.runs, page.Runs = 1, 1
		}
		if err := b.delay(ctx, &page); err != nil {
			return Page{}, err
		}
		page.Took = time.Since(page.Began)
		return page, page.writeDelay(cfg.Out)
	}
	if cfg.Only != onlyScaling {
		if err := b.goals(ctx, &page); err != nil {
			return Page{}, err
		}
	}
	if cfg.Only == "" || cfg.Only == onlyScaling {
		if err := b.scaling(ctx, &page); err != nil {
			return Page{}, err
		}
	}
	page.Took = time.Since(page.Began)
	return page, page.write(cfg.Out)
}

// on does something with a deployment of its own that has one ingester.
func (b *bench) on(ctx context.Context, name string, do func(*parts.Stage) error) (err error) {
	dir := filepath.Join(b.dir, name)
	s, err := parts.Start(ctx, filepath.Join(b.dir, "bin"), dir)
	if err != nil {
		return err
	}
	stopped := false
	defer func() {
		if !stopped {
			err = errors.Join(err, s.Stop())
		}
	}()
	if err := do(s); err != nil {
		return err
	}
	stopped = true
	return errors.Join(s.Stop(), os.RemoveAll(dir))
}

// note writes a line about what was seen, and when.
func (b *bench) note(format string, args ...any) {
	fmt.Fprintf(b.cfg.log, "%5.1fs  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...)) // a terminal that is gone is no reason to fail
}
