// Command analytics measures what the questions of analysts cost: it loads what
// simulated process instances write through the pipeline, in steps, and after
// each asks every question of docs/analytics.md, cold and hot.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/alecthomas/kong"

	"sluice/cmd/internal/parts"
	"sluice/pkg/programtest"
)

type options struct {
	Records []int64 `default:"2000000,20000000" help:"Records that are there when questions are asked, ascending."`
	Copies  int     `default:"0" help:"At the end copy all records so many times, each as another engine and a month earlier, and ask again."`
	Dir     string  `type:"path" help:"New folder for the data, which stays; default a temporary one that goes."`
	Save    string  `type:"path" help:"File that gets the figures as JSON, after each step."`
	Out     string  `type:"path" help:"File that gets the page; default the terminal."`
	Page    bool    `help:"Measure nothing: write the page from the figures in the file that --save names."`
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("analytics"), kong.Description("Measures what the questions of analysts cost."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "analytics:", err)
		os.Exit(1)
	}
}

func (o options) run(ctx context.Context) (err error) {
	var f *figures
	if o.Page {
		f, err = readFigures(o.Save)
	} else {
		f, err = o.measure(ctx)
	}
	if err != nil {
		return err
	}
	out := os.Stdout
	if o.Out != "" {
		if out, err = os.Create(o.Out); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.Close()) }()
	}
	return writePage(out, f)
}

// measure runs Sluice as processes, whose data goes to a folder.
func (o options) measure(ctx context.Context) (f *figures, err error) {
	dir := o.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "sluice-analytics-"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	bin := filepath.Join(dir, "bin")
	if err := programtest.Build(ctx, bin); err != nil {
		return nil, err
	}
	stage, err := parts.Start(ctx, bin, filepath.Join(dir, "stage"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stage.Stop()) }()
	b := newBench(stage, filepath.Join(dir, "stage"), o.Records[len(o.Records)-1])
	for _, records := range o.Records {
		if err := b.step(ctx, records, b.load); err != nil {
			return nil, err
		}
		if err := b.figures.save(o.Save); err != nil {
			return nil, err
		}
	}
	for range o.Copies {
		if err := b.copy(ctx); err != nil {
			return nil, err
		}
	}
	if o.Copies > 0 {
		if err := b.step(ctx, b.loaded*int64(1+o.Copies), nil); err != nil {
			return nil, err
		}
	}
	return b.figures, b.figures.save(o.Save)
}
