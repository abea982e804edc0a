// Command watchers measures what the console costs: by turns no browser looks and the
// first page is open in ten browsers, each of which follows what is live as a
// browser does. First nothing is posted: what the processors then do more is the
// console, what it asks, and what answers it, whatever else varies under load. Then
// one load goes on over all turns, as fast as it is answered: records per second
// and processor time per record are compared turn by turn with the one beside it.
// It prints these, and how long each page takes, and exits 0 only within the goals.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/parts"
	"sluice/pkg/load"
	"sluice/pkg/programtest"
)

type options struct {
	Sluice   string        `default:"bin/sluice" type:"path" help:"The program."`
	Rest     int           `default:"6" help:"How often each of the two is measured while nothing is posted."`
	Rounds   int           `default:"30" help:"How often each of the two is measured under load."`
	For      time.Duration `default:"5s" help:"How long each turn takes."`
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

// bench is one sluice up that is loaded and looked at.
type bench struct {
	options
	up               *parts.Part
	api, page, token string
	looking          []*http.Client // a browser each, signed in
}

// turn is what was measured in one turn.
type turn struct {
	records float64 // per second, accepted
	cpu     float64 // seconds per second, of sluice up and its engine
	told    int64   // messages to browsers
}

// perMillion is the processor time of a million records.
func (t turn) perMillion() float64 { return t.cpu / t.records * 1e6 }

func (o options) run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "sluice-watchers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ops, data := programtest.Address(), filepath.Join(dir, "data")
	b := &bench{options: o, api: "http://" + programtest.Address(), page: "http://" + programtest.Address()}
	up, err := parts.Spawn(dir, "up", ops, o.Sluice, "up", "--data", data, "--http", b.api[7:], "--ops", ops, "--console", b.page[7:],
		"--nats", programtest.Address(), "--clickhouse", programtest.Address(), "--clickhouse-http", programtest.Address())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, up.Stop()) }()
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := up.Ready(starting); err != nil {
		return err
	}
	token, err := os.ReadFile(filepath.Join(data, "token"))
	if err != nil {
		return err
	}
	b.token = strings.TrimSpace(string(token))
	b.up = up
	for range b.Browsers {
		browser, err := b.signIn(ctx)
		if err != nil {
			return err
		}
		b.looking = append(b.looking, browser)
	}
	rest, err := b.turns(ctx, b.Rest)
	if err != nil {
		return err
	}
	stop, err := b.load(ctx)
	if err != nil {
		return err
	}
	loaded, err := b.turns(ctx, b.Rounds)
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	return errors.Join(b.tell(rest, loaded), b.pages(ctx))
}

// load posts as fast as it is answered until stop is called. It returns once the
// first records were stored.
func (b *bench) load(ctx context.Context) (stop func() error, err error) {
	loading, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := load.Run(loading, load.Config{URL: b.api, Token: b.token, Duration: time.Hour})
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
	case <-time.After(2 * b.For): // warm
		return stop, nil
	case err := <-ended:
		ended <- err
		return nil, errors.Join(fmt.Errorf("the load has ended: %w", err), stop())
	}
}

// turns measures both so often. By turns, and each pair the other way round: a
// machine that gets slower, or a table that grows, is no cost of the console.
func (b *bench) turns(ctx context.Context, rounds int) (all map[bool][]turn, err error) {
	all = map[bool][]turn{}
	for i := range 2 * rounds {
		watched := i%4 == 1 || i%4 == 2
		one, err := b.turn(ctx, watched)
		if err != nil {
			return nil, err
		}
		all[watched] = append(all[watched], one)
	}
	return all, nil
}

// turn measures once.
func (b *bench) turn(ctx context.Context, watched bool) (t turn, err error) {
	watching, leave := context.WithCancel(ctx)
	defer leave()
	counts := make([]int64, b.Browsers)
	all, watching := errgroup.WithContext(watching)
	if watched {
		for i, browser := range b.looking {
			all.Go(func() error { return b.follow(watching, browser, &counts[i]) })
		}
	}
	pause(ctx, time.Second) // what was begun by the turn before has ended
	begun, records, used, err := b.read(ctx)
	if err != nil {
		return t, err
	}
	pause(ctx, b.For)
	now, recordsNow, usedNow, err := b.read(ctx)
	leave()
	if err := errors.Join(err, all.Wait(), ctx.Err()); err != nil {
		return t, err
	}
	seconds := now.Sub(begun).Seconds()
	t = turn{records: (recordsNow - records) / seconds, cpu: (usedNow - used).Seconds() / seconds}
	for i, n := range counts {
		if watched && n < int64(b.For/time.Second)/2 {
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

// read says what has been accepted, and what processor time was used, until now.
func (b *bench) read(ctx context.Context) (at time.Time, records float64, cpu time.Duration, err error) {
	metrics, err := b.up.Metrics(ctx)
	if err != nil {
		return at, 0, 0, err
	}
	for name, value := range metrics {
		if strings.HasPrefix(name, "sluice_api_records_total") {
			records += value
		}
	}
	cpu, err = usedBy(b.up.PID())
	return time.Now(), records, cpu, err
}

// usedBy is the processor time of a process and its children that run.
func usedBy(pid int) (cpu time.Duration, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	const state, user, system = 3, 14, 15 // see proc_pid_stat(5)
	for _, at := range []int{user, system} {
		ticks, err := strconv.ParseInt(fields[at-state], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat field %d: %w", pid, at, err)
		}
		cpu += time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100 on every platform Go runs on
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return 0, err
	}
	for _, thread := range threads {
		children, err := os.ReadFile(thread)
		if err != nil {
			continue // a thread that has ended
		}
		for _, child := range strings.Fields(string(children)) {
			number, err := strconv.Atoi(child)
			if err != nil {
				return 0, err
			}
			more, err := usedBy(number)
			if err != nil {
				return 0, err
			}
			cpu += more
		}
	}
	return cpu, nil
}

// signIn is a browser that is signed in.
func (b *bench) signIn(ctx context.Context) (*http.Client, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	browser := &http.Client{Jar: jar, Transport: &http.Transport{}}
	form := url.Values{"token": {b.token}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.page+"/sign-in", strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := browser.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("sign in: %s", res.Status)
	}
	return browser, nil
}

// follow has the first page open until it is closed.
func (b *bench) follow(ctx context.Context, browser *http.Client, told *int64) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.page+"/now/events", nil)
	if err != nil {
		return err
	}
	res, err := browser.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	buffer := make([]byte, 16<<10)
	for {
		n, err := res.Body.Read(buffer)
		*told += int64(strings.Count(string(buffer[:n]), "event: now"))
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("an open page: %w", err)
		}
	}
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
func compared(turns map[bool][]turn, of func(alone, watched turn) float64) (low, middle, high float64) {
	var all []float64
	for i, alone := range turns[false] {
		all = append(all, 100*of(alone, turns[true][i]))
	}
	slices.Sort(all)
	return all[len(all)/4], median(all), all[len(all)-1-len(all)/4]
}

func each(turns []turn, of func(turn) float64) (all []float64) {
	for _, t := range turns {
		all = append(all, of(t))
	}
	return all
}

// tell prints what was measured, and fails beyond the goal.
func (b *bench) tell(rest, loaded map[bool][]turn) (err error) {
	cores := float64(runtime.NumCPU())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "median of turns of %s\tnobody looks\t%d browsers look\tthey take\tquartiles\t\n", b.For, b.Browsers)
	row := func(what, format string, turns map[bool][]turn, of func(turn) float64, cost func(alone, watched turn) float64) {
		low, middle, high := compared(turns, cost)
		fmt.Fprintf(w, "%s\t"+format+"\t"+format+"\t%.2f %%\t%.2f to %.2f %%\t\n", what, median(each(turns[false], of)), median(each(turns[true], of)), middle, low, high)
		if middle > b.Most {
			err = errors.Join(err, fmt.Errorf("%s: %d browsers take %.2f %%, at most %.1f %% may be", what, b.Browsers, middle, b.Most))
		}
	}
	cpu := func(t turn) float64 { return 1000 * t.cpu }
	row("nothing is posted: CPU ms per second, as a share of all processors", "%.1f", rest, cpu, func(alone, watched turn) float64 { return (watched.cpu - alone.cpu) / cores })
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

// pages measures how long each page takes, of what the rounds have left.
func (b *bench) pages(ctx context.Context) error {
	browser := b.looking[0]
	var slow error
	for _, path := range []string{"/", "/processes?window=24h", "/instances", "/dead", "/sources", "/query", "/how"} {
		var took []float64
		for range 5 {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.page+path, nil)
			if err != nil {
				return err
			}
			begun := time.Now()
			res, err := browser.Do(req)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			if err != nil || res.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s %w", path, res.Status, err)
			}
			took = append(took, time.Since(begun).Seconds()*1000)
		}
		fmt.Printf("%-24s %.0f ms\n", path, median(took))
		if median(took) > b.Page.Seconds()*1000 {
			slow = errors.Join(slow, fmt.Errorf("%s takes %.0f ms, at most %s may be", path, median(took), b.Page))
		}
	}
	return slow
}
