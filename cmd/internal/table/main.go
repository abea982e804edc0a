// Command table measures what records cost in ClickHouse: bytes by column and by
// fold, processor time of the engine, how fast a lane drains, and how long the
// queries of analysts take. It runs Sluice as processes, fills a lane while no
// ingester runs, and measures from when one comes.
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

	"github.com/alecthomas/kong"

	"sluice/cmd/internal/parts"
	"sluice/pkg/programtest"
)

type options struct {
	Records int64  `default:"20000000" help:"Records to load."`
	Dir     string `type:"path" help:"New folder for the data, which stays; default a temporary one that goes."`
	Save    string `type:"path" help:"File that gets the figures as JSON."`
	Beside  string `type:"path" help:"File of figures that were saved before, to be shown beside."`
	Out     string `type:"path" help:"File that gets the page; default the terminal."`
	Ratios  bool   `help:"Ask the 16 queries of e79fe00 of the tables of then and of now instead, and show how they compare."`
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("table"), kong.Description("Measures what records cost in ClickHouse."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func (o options) run(ctx context.Context) (err error) {
	dir := o.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "sluice-table-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	before, err := readFigures(o.Beside)
	if err != nil {
		return err
	}
	bin := filepath.Join(dir, "bin")
	if err := programtest.Build(ctx, bin); err != nil {
		return err
	}
	stage, err := parts.Start(ctx, bin, filepath.Join(dir, "stage"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stage.Stop()) }()
	b := &bench{Stage: stage, records: o.Records, log: os.Stderr}
	var write func(io.Writer) error
	if o.Ratios {
		f, err := b.loaded(ctx)
		if err != nil {
			return err
		}
		asMerged, inOne, err := b.compare(ctx)
		if err != nil {
			return err
		}
		write = func(out io.Writer) error { return writeRatios(out, f, asMerged, inOne) }
	} else {
		f, err := b.measure(ctx)
		if err != nil {
			return err
		}
		if err := f.save(o.Save); err != nil {
			return err
		}
		write = func(out io.Writer) error { return writePage(out, f, before) }
	}
	out := os.Stdout
	if o.Out != "" {
		if out, err = os.Create(o.Out); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.Close()) }()
	}
	return write(out)
}
