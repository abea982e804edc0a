package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
)

const (
	browsers = 10
	// often is how many times as often as else the console looks, and tells its
	// browsers; what that takes is divided by it, so that what else varies weighs
	// so much less.
	often   = 10
	slowest = 300 // ms, of the median of a page
	mostOf  = 2.0 // percent of the processors and of the throughput that browsers may take
)

// watched is a deployment with a console that is loaded and looked at.
type watched struct {
	*deployment.Deployment
	b       *bench
	page    string         // URL of the console
	looking []*http.Client // each signed in
}

// console measures what the console costs, of a deployment that has stored what a
// simulated engine wrote in a month: how long each page takes, and what browsers take
// that have the first page open and follow what is live. By turns no browser looks and
// all do, first while nothing is posted and then under load. It prints what it saw.
func (b *bench) console(ctx context.Context, page *Page) error {
	return b.on(ctx, page, "console", func(d *deployment.Deployment) error {
		console, err := d.AddConsole(ctx, "--every", (time.Second / often).String())
		if err != nil {
			return err
		}
		w := &watched{Deployment: d, b: b, page: "http://" + console.HTTP}
		for range browsers {
			client, err := signIn(ctx, w.page, d.Token)
			if err != nil {
				return err
			}
			w.looking = append(w.looking, client)
		}
		b.note("store %d records", b.plan.many)
		if err := b.store(ctx, d, load.History(1, b.plan.many, span, time.Now()), b.plan.many, b.plan.many); err != nil {
			return err
		}
		if page.Console, err = w.pages(ctx); err != nil {
			return err
		}
		costs, err := w.costs(ctx)
		page.Console = append(page.Console, costs...)
		b.tell(page.Console)
		return err
	})
}

// pages measures how long each page takes.
func (w *watched) pages(ctx context.Context) (all rows, err error) {
	paths := []string{"/"}
	processes, err := w.Query(ctx, "SELECT DISTINCT bpmn_process_id FROM flow.process_instances ORDER BY bpmn_process_id")
	if err != nil {
		return nil, err
	}
	instance, err := w.Query(ctx, "SELECT concat('source=', source, '&key=', process_instance_key) FROM flow.v_process_instances WHERE incidents > 0 LIMIT 1")
	if err != nil {
		return nil, err
	}
	for _, window := range []string{"24h", "30d"} {
		paths = append(paths, "/processes?window="+window, "/instances?window="+window,
			"/instances?q=timed+out&window="+window, "/instances?state=INCIDENT&window="+window)
		for process := range strings.FieldsSeq(processes) {
			chosen := "?source=load&id=" + process + "&window=" + window
			paths = append(paths, "/process"+chosen, "/process/elements"+chosen) // a browser asks for the second when it has the first
		}
	}
	paths = append(paths, "/instances?q="+instance[strings.LastIndexByte(instance, '=')+1:], "/instance?"+instance, "/records", "/query", "/dead", "/sources")
	for _, path := range paths {
		row := Row{What: path, Unit: "ms", Goal: atMost(slowest, 0)}
		for range w.b.plan.asks {
			began := time.Now()
			if err := get(ctx, w.looking[0], w.page+path, func(in io.Reader) error {
				_, err := io.Copy(io.Discard, in)
				return err
			}); err != nil {
				return nil, err
			}
			row.Runs = append(row.Runs, time.Since(began).Seconds()*1e3)
		}
		all = append(all, row)
	}
	return all, nil
}

// turn is what was measured in one turn.
type turn struct {
	records float64            // per second, accepted
	cpu     map[string]float64 // seconds per second, by part; of all under ""
}

// costs are how much a turn with browsers takes more than the one beside it without,
// in percent. The pairs go the other way round each time: a machine that gets slower,
// or a table that grows, is no cost of the console.
func (w *watched) costs(ctx context.Context) (rows, error) {
	r := rows{
		{What: fmt.Sprintf("%d browsers, nothing is posted: share of all processors", browsers), Unit: "%", Goal: atMost(mostOf, 0)},
		{What: fmt.Sprintf("%d browsers, full load: CPU per million records", browsers), Unit: "%", Goal: atMost(mostOf, 0)},
		{What: fmt.Sprintf("%d browsers, full load: records per second", browsers), Unit: "%", Goal: atMost(mostOf, 0)},
	}
	var byPart rows
	for _, p := range w.Processes {
		byPart = append(byPart, Row{What: "– nothing is posted, of it " + p.Name, Unit: "%"})
	}
	cores := float64(runtime.NumCPU())
	for i := range w.b.plan.rest {
		alone, watched, err := w.pair(ctx, i%2 == 1)
		if err != nil {
			return nil, err
		}
		share := func(part string) float64 { return 100 * (watched.cpu[part] - alone.cpu[part]) / cores / often }
		r[:1].add(share(""))
		for n, p := range w.Processes {
			byPart[n : n+1].add(share(p.Name))
		}
	}
	for i := range w.b.plan.pairs {
		alone, watched, err := w.loaded(ctx, i%2 == 1)
		if err != nil {
			return nil, err
		}
		r[1:].add(100*((watched.cpu[""]/watched.records)/(alone.cpu[""]/alone.records)-1)/often, 100*(1-watched.records/alone.records)/often)
	}
	return append(r, byPart...), nil
}

// loaded is a pair under load. The engine does not merge during it, and catches up
// before the next one: a merge takes a core for seconds, and would fall on either turn
// by chance.
func (w *watched) loaded(ctx context.Context, watchedFirst bool) (alone, watched turn, err error) {
	if err := w.Exec(ctx, "SYSTEM STOP MERGES"); err != nil {
		return alone, watched, err
	}
	loading, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := load.Run(loading, load.Config{URL: w.URL, Token: w.Token, Duration: time.Hour})
		if loading.Err() != nil {
			err = nil // it was stopped
		}
		ended <- err
	}()
	deployment.Sleep(ctx, 2*time.Second) // warm
	alone, watched, err = w.pair(ctx, watchedFirst)
	end()
	return alone, watched, errors.Join(err, <-ended, w.Exec(ctx, "SYSTEM START MERGES"), w.WaitMerged(ctx))
}

// pair measures one turn of each.
func (w *watched) pair(ctx context.Context, watchedFirst bool) (alone, watched turn, err error) {
	both := map[bool]turn{}
	for _, looked := range []bool{watchedFirst, !watchedFirst} {
		if both[looked], err = w.turn(ctx, looked); err != nil {
			return alone, watched, err
		}
	}
	return both[false], both[true], nil
}

// turn measures once.
func (w *watched) turn(ctx context.Context, looked bool) (t turn, err error) {
	watching, leave := context.WithCancel(ctx)
	defer leave()
	told := make([]int64, browsers)
	all, watching := errgroup.WithContext(watching)
	if looked {
		for i, client := range w.looking {
			all.Go(func() error { return follow(watching, client, w.page, &told[i]) })
		}
	}
	deployment.Sleep(ctx, time.Second) // what was begun by the turn before has ended
	before, err := w.read(ctx)
	if err != nil {
		return t, err
	}
	began := time.Now()
	deployment.Sleep(ctx, w.b.plan.turn)
	t, err = w.read(ctx)
	seconds := time.Since(began).Seconds()
	leave()
	if err := errors.Join(err, all.Wait(), ctx.Err()); err != nil {
		return t, err
	}
	t.records = (t.records - before.records) / seconds
	for part := range t.cpu {
		t.cpu[part] = (t.cpu[part] - before.cpu[part]) / seconds
	}
	for i, n := range told {
		if looked && n < int64(w.b.plan.turn/time.Second)*often/2 {
			return t, fmt.Errorf("browser %d was told %d messages in %s", i, n, w.b.plan.turn)
		}
	}
	return t, nil
}

// read is what has been until now: sums in place of rates.
func (w *watched) read(ctx context.Context) (t turn, err error) {
	metrics, err := w.Process(deployment.API).Metrics(ctx)
	if err != nil {
		return t, err
	}
	for name, value := range metrics {
		if strings.HasPrefix(name, "sluice_api_records_total") {
			t.records += value
		}
	}
	t.cpu = map[string]float64{}
	for _, p := range w.Processes {
		used, err := load.CPUTime(p.PID())
		if err != nil {
			return t, err
		}
		t.cpu[p.Name] = used.Seconds()
		t.cpu[""] += used.Seconds()
	}
	return t, nil
}

// signIn gives a browser that is signed in.
func signIn(ctx context.Context, page, token string) (*http.Client, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Jar: jar, Transport: &http.Transport{}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, page+"/sign-in", strings.NewReader(url.Values{"token": {token}}.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("sign in: %s", res.Status)
	}
	return client, nil
}

// get asks for a page and reads it.
func get(ctx context.Context, client *http.Client, page string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", page, res.Status)
	}
	return read(res.Body)
}

// follow has the first page open until ctx ends, which asks again after every answer,
// and counts the answers.
func follow(ctx context.Context, client *http.Client, page string, told *int64) error {
	for {
		err := get(ctx, client, page+"/", func(in io.Reader) error {
			_, err := io.Copy(io.Discard, in)
			return err
		})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("an open page: %w", err)
		}
		*told++
		deployment.Sleep(ctx, time.Second/often)
	}
}
