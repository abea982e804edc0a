// Command bench runs Sluice as separate processes under load, and measures CPU per record,
// rates, latencies, memory, allocations and bytes. It writes the results to
// docs/performance.md. Named parts have their own deployments and pages.
//
// It exits 0 only if after every run the stored records equal the acknowledged ones. A
// missed goal is not a failure.
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

// command returns the command line that repeats this measurement.
func command(args []string) string {
	if len(args) == 0 {
		return "make bench"
	}
	return fmt.Sprintf("make bench ARGS=%q", strings.Join(args, " "))
}

type parted struct {
	names   string // of parts, which share a deployment
	measure func(*bench, context.Context, *Page) error
	write   func(Page, string) error // writes its page
}

// measurements are all parts in order.
var measurements = []parted{
	{"capacity", (*bench).capacity, nil},
	{"goals", (*bench).goals, Page.writeGoals},
	{"scaling", (*bench).scaling, Page.writeGoals},
	{"questions console", (*bench).history, Page.writeHistory},
	{"rivals", (*bench).rivals, Page.writeRivals},
}

type bench struct {
	cfg  config
	plan plan
	dir  string  // data and logs; removed at the end
	seed uint64  // of the latest run's records
	warm bool    // a load has warmed up
	rate float64 // sustained, records per second

	began time.Time
}

// measure measures, writes the pages and returns their contents. The error wraps
// load.ErrNotStored when the stored records differ from the acknowledged ones. Then no
// page is written, and the folder with data and logs is kept.
func measure(ctx context.Context, cfg config) (_ Page, err error) {
	p, err := cfg.plan()
	if err != nil {
		return Page{}, err
	}
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return Page{}, err
	}
	b := &bench{cfg: cfg, plan: p, dir: dir, rate: 180_000, began: time.Now()}
	defer func() {
		if err == nil || ctx.Err() != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		} else {
			err = fmt.Errorf("%w (data and logs are in %s)", err, dir)
		}
	}()
	page := Page{Command: cfg.command, Short: cfg.Short, Runs: p.runs, Began: b.began}
	if page.Machine, err = describeMachine(ctx, dir); err != nil {
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

func (b *bench) all(ctx context.Context, page *Page) error {
	names := b.cfg.Parts
	if len(names) == 0 {
		names = []string{"goals", "scaling"}
	}
	if slices.ContainsFunc(names, isSection) { // printed, without a page
		return b.goals(ctx, page)
	}
	wanted := slices.DeleteFunc(slices.Clone(measurements), func(m parted) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(strings.Fields(m.names), name) })
	})
	for _, m := range wanted {
		if err := m.measure(b, ctx, page); err != nil {
			return fmt.Errorf("%s: %w", m.names, err)
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

// on runs a function on a new deployment with one ingester.
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

func (b *bench) note(format string, args ...any) {
	fmt.Fprintf(b.cfg.log, "%5.1fs  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...)) // a closed terminal is no failure
}
