// Command bench posts to a Sluice of its own, in separate processes, and measures
// what the goals of the project are about: CPU per record, rate, waits, memory,
// allocations and bytes. It writes what it saw as docs/performance.md. Named parts
// measure what else costs: each on a deployment of its own, with a page of its own.
//
// It exits 0 only if after every run exactly what was acknowledged is stored; that a
// goal is missed is a finding, not a failure.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/programtest"
)

func main() {
	var cfg config
	kong.Parse(&cfg, kong.Name("bench"), kong.Description("Measures Sluice and writes docs/performance.md and the pages of docs/performance/."))
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

// parted is what can be measured by itself.
type parted struct {
	name    string
	measure func(*bench, context.Context, *Page) error
	write   func(Page, string) error // the page that it stands on
}

// measurements are all parts in the order in which they are made. The first three are
// made when none is named.
var measurements = []parted{
	{"capacity", (*bench).capacity, nil},
	{"goals", (*bench).goals, Page.writeGoals},
	{"scaling", (*bench).scaling, Page.writeGoals},
	{"questions", (*bench).questions, Page.writeQuestions},
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

// measure measures, writes the pages and returns what stands on them. The error wraps
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
	page := Page{Command: cfg.command, Short: cfg.Short, Runs: p.runs, Began: b.began}
	if page.Machine, err = lookAround(ctx, dir); err != nil {
		return Page{}, err
	}
	build := programtest.Build
	if cfg.Short {
		build = programtest.BuildPlain
	}
	if err := build(ctx, filepath.Join(dir, "bin")); err != nil {
		return Page{}, err
	}
	return page, b.all(ctx, &page)
}

// all makes the measurements that are asked for, and writes their pages.
func (b *bench) all(ctx context.Context, page *Page) error {
	names := b.cfg.Parts
	if len(names) == 0 {
		names = []string{"capacity", "goals", "scaling"}
	}
	wanted := slices.DeleteFunc(slices.Clone(measurements), func(m parted) bool { return !slices.Contains(names, m.name) })
	if len(wanted) < len(slices.Compact(slices.Sorted(slices.Values(names)))) {
		return fmt.Errorf("one of %v is no part that can be measured", names)
	}
	for _, m := range wanted {
		if err := m.measure(b, ctx, page); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	page.Took = time.Since(page.Began)
	for _, m := range wanted {
		if m.write == nil {
			continue
		}
		if err := m.write(*page, b.cfg.Out); err != nil {
			return err
		}
	}
	return nil
}

// on does something with a deployment of its own that has one ingester.
func (b *bench) on(ctx context.Context, page *Page, name string, do func(*deployment.Deployment) error) error {
	dir := filepath.Join(b.dir, name)
	d, err := deployment.Start(ctx, deployment.Config{Bin: filepath.Join(b.dir, "bin"), Dir: dir})
	if err != nil {
		return err
	}
	if page.Versions.NATS == "" {
		err = page.Versions.ask(ctx, d)
	}
	if err == nil {
		err = do(d)
	}
	if err = errors.Join(err, d.Stop()); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// note writes a line about what was seen, and when.
func (b *bench) note(format string, args ...any) {
	fmt.Fprintf(b.cfg.log, "%5.1fs  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...)) // a terminal that is gone is no reason to fail
}
