package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/parts"
	"sluice/pkg/load"
)

// turn is what was measured in one turn.
type turn struct {
	records float64 // per second, accepted
	cpu     float64 // seconds per second, of all parts
	parts   map[string]float64
	told    int64 // messages to browsers
}

// perMillion is the processor time of a million records.
func (t turn) perMillion() float64 { return t.cpu / t.records * 1e6 }

// turns are some of either kind, whether browsers looked; those of one place are a pair.
type turns map[bool][]turn

// turns measures both so often. By turns, and each pair the other way round: a
// machine that gets slower, or a table that grows, is no cost of the console.
func (b *bench) turns(ctx context.Context, rounds int) (turns, error) {
	all := turns{}
	for i := range rounds {
		if err := b.pair(ctx, all, i%2 == 1); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// pair measures one of each.
func (b *bench) pair(ctx context.Context, all turns, watchedFirst bool) error {
	for _, watched := range []bool{watchedFirst, !watchedFirst} {
		one, err := b.turn(ctx, watched)
		if err != nil {
			return err
		}
		all[watched] = append(all[watched], one)
	}
	return nil
}

// pairs are turns under load. The engine merges between them.
func (b *bench) pairs(ctx context.Context) (turns, error) {
	all := turns{}
	for i := range b.Rounds {
		if err := b.Exec(ctx, "SYSTEM STOP MERGES"); err != nil {
			return nil, err
		}
		stop, err := b.load(ctx)
		if err != nil {
			return nil, err
		}
		err = b.pair(ctx, all, i%2 == 1)
		if err := errors.Join(err, stop(), b.Exec(ctx, "SYSTEM START MERGES"), b.Settle(ctx)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// load posts as fast as it is answered until stop is called. It returns once the
// first records were stored.
func (b *bench) load(ctx context.Context) (stop func() error, err error) {
	loading, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := load.Run(loading, load.Config{URL: b.URL, Token: b.Token, Duration: time.Hour})
		if loading.Err() != nil {
			err = nil // it was stopped
		}
		ended <- err
	}()
	stop = func() error {
		end()
		return <-ended
	}
	select {
	case <-time.After(2 * time.Second): // warm
		return stop, nil
	case err := <-ended:
		ended <- err
		return nil, errors.Join(fmt.Errorf("the load has ended: %w", err), stop())
	}
}

// turn measures once.
func (b *bench) turn(ctx context.Context, watched bool) (t turn, err error) {
	watching, leave := context.WithCancel(ctx)
	defer leave()
	counts := make([]int64, b.Browsers)
	all, watching := errgroup.WithContext(watching)
	if watched {
		for i, browser := range b.looking {
			all.Go(func() error { return browser.follow(watching, &counts[i]) })
		}
	}
	pause(ctx, time.Second) // what was begun by the turn before has ended
	before, err := b.read(ctx)
	if err != nil {
		return t, err
	}
	pause(ctx, b.For)
	after, err := b.read(ctx)
	leave()
	if err := errors.Join(err, all.Wait(), ctx.Err()); err != nil {
		return t, err
	}
	seconds := after.at.Sub(before.at).Seconds()
	t = turn{records: (after.records - before.records) / seconds, parts: map[string]float64{}}
	for part, used := range after.cpu {
		t.parts[part] = (used - before.cpu[part]).Seconds() / seconds
		t.cpu += t.parts[part]
	}
	for i, n := range counts {
		if watched && n < int64(b.For/time.Second)*int64(b.Often)/2 {
			return t, fmt.Errorf("browser %d was told %d messages in %s", i, n, b.For)
		}
		t.told += n
	}
	return t, nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// reading is what has been until a moment.
type reading struct {
	at      time.Time
	records float64                  // accepted
	cpu     map[string]time.Duration // by part
}

func (b *bench) read(ctx context.Context) (r reading, err error) {
	metrics, err := b.Part(parts.API).Metrics(ctx)
	if err != nil {
		return r, err
	}
	for name, value := range metrics {
		if strings.HasPrefix(name, "sluice_api_records_total") {
			r.records += value
		}
	}
	r.cpu = map[string]time.Duration{}
	for _, p := range b.Parts {
		if r.cpu[p.Name], err = load.CPUTime(p.PID()); err != nil {
			return r, err
		}
	}
	r.at = time.Now()
	return r, nil
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	if n := len(values); n%2 == 0 {
		return (values[n/2-1] + values[n/2]) / 2
	}
	return values[len(values)/2]
}

// compared is how much a turn with browsers takes more than the one beside it
// without, in percent: the median over all pairs, and the quartiles.
func (b *bench) compared(all turns, of func(alone, watched turn) float64) (low, middle, high float64) {
	var costs []float64
	for i, alone := range all[false] {
		costs = append(costs, 100*of(alone, all[true][i])/float64(b.Often))
	}
	slices.Sort(costs)
	return costs[len(costs)/4], median(costs), costs[len(costs)-1-len(costs)/4]
}

func each(turns []turn, of func(turn) float64) (all []float64) {
	for _, t := range turns {
		all = append(all, of(t))
	}
	return all
}

// tell prints what was measured, and fails beyond the goal.
func (b *bench) tell(rest, loaded turns) (err error) {
	cores := float64(runtime.NumCPU())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "median of turns of %s\tnobody looks\t%d browsers, %d times as often\tthey take\tquartiles\t\n", b.For, b.Browsers, b.Often)
	row := func(what, format string, all turns, of func(turn) float64, cost func(alone, watched turn) float64) {
		low, middle, high := b.compared(all, cost)
		fmt.Fprintf(w, "%s\t"+format+"\t"+format+"\t%.2f %%\t%.2f to %.2f %%\t\n", what, median(each(all[false], of)), median(each(all[true], of)), middle, low, high)
		if middle > b.Most {
			err = errors.Join(err, fmt.Errorf("%s: %d browsers take %.2f %%, at most %.1f %% may be", what, b.Browsers, middle, b.Most))
		}
	}
	cpu := func(t turn) float64 { return 1000 * t.cpu }
	row("nothing is posted: CPU ms per second, as a share of all processors", "%.1f", rest, cpu, func(alone, watched turn) float64 { return (watched.cpu - alone.cpu) / cores })
	for _, p := range b.Parts {
		row("– "+p.Name, "%.1f", rest, func(t turn) float64 { return 1000 * t.parts[p.Name] }, func(alone, watched turn) float64 { return (watched.parts[p.Name] - alone.parts[p.Name]) / cores })
	}
	row("full load: CPU seconds per million records", "%.3f", loaded, turn.perMillion, func(alone, watched turn) float64 { return watched.perMillion()/alone.perMillion() - 1 })
	row("full load: records per second", "%.0f", loaded, func(t turn) float64 { return t.records }, func(alone, watched turn) float64 { return 1 - watched.records/alone.records })
	if problem := w.Flush(); problem != nil {
		return problem
	}
	var told int64
	for _, t := range loaded[true] {
		told += t.told
	}
	fmt.Printf("%d pairs at rest and %d under load; %.2f messages a second to each browser (goal: they take at most %.1f %%)\n",
		b.Rest, b.Rounds, float64(told)/float64(b.Rounds*b.Browsers)/(b.For+time.Second).Seconds(), b.Most)
	return err
}
