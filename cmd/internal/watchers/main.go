// Command watchers measures what the console costs, of a deployment that has stored
// many records of a simulated engine: how long each page takes, and what ten browsers
// take that have the first page open and follow what is live.
//
// By turns no browser looks and all do. First nothing is posted: what the processors
// then do more is the console, what it asks, and what answers it. Then records are
// posted as fast as they are answered, and a turn is compared with the one beside it.
// The engine does not merge during such a pair, and catches up before the next one:
// a merge takes a core for seconds, and would fall on either turn by chance. For the
// same reason browsers are told --often times as often as else, and what they take is
// divided by it: what else varies weighs so much less.
//
// It exits 0 only within the goals.
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
	"sluice/cmd/internal/simulated"
	"sluice/pkg/load"
	"sluice/pkg/programtest"
)

type options struct {
	Records  int64         `default:"20000000" help:"Records of a simulated engine, of 30 days, that are stored before anything is measured."`
	Rest     int           `default:"6" help:"How often each of the two is measured while nothing is posted."`
	Rounds   int           `default:"15" help:"How often each of the two is measured under load."`
	For      time.Duration `default:"5s" help:"How long each turn takes."`
	Often    int           `default:"10" help:"How many times as often as else the console looks, and tells its browsers; what that takes is divided by it."`
	Browsers int           `default:"10" help:"How many have the first page open."`
	Most     float64       `default:"2" help:"Most of the processors and of the throughput that they may take, in percent."`
	Page     time.Duration `default:"300ms" help:"Longest median time of a page."`
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("watchers"), kong.Description("Measures what the console costs while it is looked at."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "watchers:", err)
		os.Exit(1)
	}
}

// bench is a deployment that is loaded and looked at.
type bench struct {
	options
	*parts.Stage
	page    string     // URL of the console
	looking []*browser // each signed in
}

func (o options) run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "sluice-watchers-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bin := filepath.Join(dir, "bin")
	if err := programtest.Build(ctx, bin); err != nil {
		return err
	}
	stage, err := parts.Start(ctx, bin, filepath.Join(dir, "stage"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stage.Stop()) }()
	console, err := stage.AddConsole(ctx, "--every", (time.Second / time.Duration(o.Often)).String())
	if err != nil {
		return err
	}
	b := &bench{options: o, Stage: stage, page: "http://" + console.HTTP}
	for range b.Browsers {
		browser, err := signIn(ctx, b.page, b.Token)
		if err != nil {
			return err
		}
		b.looking = append(b.looking, browser)
	}
	b.say("store %d records", b.Records)
	if err := b.fill(ctx); err != nil {
		return err
	}
	b.say("ask for each page")
	slow := b.pages(ctx)
	b.say("look while nothing is posted")
	rest, err := b.turns(ctx, b.Rest)
	if err != nil {
		return err
	}
	b.say("look under load")
	loaded, err := b.pairs(ctx)
	if err != nil {
		return err
	}
	return errors.Join(slow, b.tell(rest, loaded))
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintln(os.Stderr, time.Now().UTC().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// fill stores what a simulated engine wrote in 30 days, and waits for its merges.
func (b *bench) fill(ctx context.Context) error {
	const span = 30 * 24 * time.Hour
	_, err := load.Run(ctx, load.Config{
		URL: b.URL, Token: b.Token, Records: b.Records, Batch: 1000, Seed: 1, Timeout: time.Minute, GiveUp: 5 * time.Minute,
		Writer: &simulated.Writer{Engine: simulated.Engine(1, b.Records, span, time.Now())},
		Stored: func(ctx context.Context, acked load.Totals) error { return b.Stored(ctx, acked.Records) },
	})
	return errors.Join(err, b.Settle(ctx))
}

// pages measures how long each page takes.
func (b *bench) pages(ctx context.Context) error {
	paths := []string{"/"}
	processes, err := b.Query(ctx, "SELECT DISTINCT bpmn_process_id FROM flow.instances ORDER BY bpmn_process_id")
	if err != nil {
		return err
	}
	instance, err := b.Query(ctx, "SELECT concat('source=', source, '&key=', process_instance_key) FROM flow.v_process_instances WHERE incidents > 0 LIMIT 1")
	if err != nil {
		return err
	}
	for _, window := range []string{"24h", "30d"} {
		paths = append(paths, "/processes?window="+window, "/instances?window="+window,
			"/instances?q=timed+out&window="+window, "/instances?state=INCIDENT&window="+window)
		for process := range strings.FieldsSeq(processes) {
			chosen := "?source=load&id=" + process + "&window=" + window
			paths = append(paths, "/process"+chosen, "/process/elements"+chosen) // a browser asks for the second when it has the first
		}
	}
	paths = append(paths, "/instances?q="+instance[strings.LastIndexByte(instance, '=')+1:], "/instance?"+instance, "/records", "/query", "/dead", "/sources", "/how")
	var slow error
	for _, path := range paths {
		var took []float64
		for range 5 {
			ms, err := b.looking[0].get(ctx, path)
			if err != nil {
				return err
			}
			took = append(took, ms)
		}
		fmt.Printf("%-60s %4.0f ms\n", path, median(took))
		if median(took) > b.Page.Seconds()*1000 {
			slow = errors.Join(slow, fmt.Errorf("%s takes %.0f ms, at most %s may be", path, median(took), b.Page))
		}
	}
	return slow
}
