// Command watchers measures what the console costs: the same load again and
// again, by turns with nobody looking and with the first page open in ten
// browsers, each of which follows what is live as a browser does. It prints both
// rates, and how long each page takes, and exits 0 only within the goals.
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
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/parts"
	"sluice/pkg/load"
)

type options struct {
	Sluice   string        `default:"bin/sluice" type:"path" help:"The program."`
	Rounds   int           `default:"6" help:"How often each of the two is measured."`
	For      time.Duration `default:"10s" help:"How long each round posts."`
	Browsers int           `default:"10" help:"How many have the first page open."`
	Most     float64       `default:"2" help:"Most of the throughput that they may take, in percent."`
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
	api, page, token string
}

func (o options) run(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "sluice-watchers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ops, data := parts.Address(), filepath.Join(dir, "data")
	b := bench{options: o, api: "http://" + parts.Address(), page: "http://" + parts.Address()}
	up, err := parts.Spawn(dir, "up", ops, o.Sluice, "up", "--data", data, "--http", b.api[7:], "--ops", ops, "--console", b.page[7:],
		"--nats", parts.Address(), "--clickhouse", parts.Address(), "--clickhouse-http", parts.Address())
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
	if _, err := b.post(ctx); err != nil { // warm
		return err
	}
	// By turns, and each pair the other way round: a machine that gets slower,
	// or a table that grows, is no cost of the console.
	rates := map[bool][]float64{}
	var told int64
	for round := range 2 * o.Rounds {
		watched := round%4 == 1 || round%4 == 2
		rate, n, err := b.round(ctx, watched)
		if err != nil {
			return err
		}
		rates[watched], told = append(rates[watched], rate), told+n
	}
	return errors.Join(b.tell(rates, told), b.pages(ctx))
}

// post posts for a while, as fast as it is answered, and gives records per second.
func (b bench) post(ctx context.Context) (float64, error) {
	report, err := load.Run(ctx, load.Config{URL: b.api, Token: b.token, Duration: b.For})
	return report.RecordsPerSec, err
}

// round measures once, and says how many messages the browsers were told.
func (b bench) round(ctx context.Context, watched bool) (rate float64, told int64, err error) {
	watching, leave := context.WithCancel(ctx)
	defer leave()
	counts := make([]int64, b.Browsers)
	all, watching := errgroup.WithContext(watching)
	if watched {
		for i := range counts {
			browser, err := b.signIn(ctx)
			if err != nil {
				return 0, 0, err
			}
			all.Go(func() error { return b.follow(watching, browser, &counts[i]) })
		}
	}
	if rate, err = b.post(ctx); err != nil {
		return 0, 0, err
	}
	leave()
	if err := all.Wait(); err != nil {
		return 0, 0, err
	}
	for i, n := range counts {
		if watched && n < int64(b.For/time.Second)/2 {
			return 0, 0, fmt.Errorf("browser %d was told %d messages in %s", i, n, b.For)
		}
		told += n
	}
	return rate, told, nil
}

// signIn is a browser of somebody who has signed in.
func (b bench) signIn(ctx context.Context) (*http.Client, error) {
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
func (b bench) follow(ctx context.Context, browser *http.Client, told *int64) error {
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

// tell prints what was measured, and fails beyond the goal.
func (b bench) tell(rates map[bool][]float64, told int64) error {
	alone, watched := median(rates[false]), median(rates[true])
	cost := 100 * (alone - watched) / alone
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "records per second, median of %d\tlowest\thighest\t\n", b.Rounds)
	for _, watching := range []bool{false, true} {
		name := "nobody looks"
		if watching {
			name = fmt.Sprintf("%d browsers look", b.Browsers)
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t\n", name, median(rates[watching]), slices.Min(rates[watching]), slices.Max(rates[watching]))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("they take %.1f %% (goal: at most %.1f %%); %.2f messages a second each\n", cost, b.Most,
		float64(told)/float64(b.Rounds*b.Browsers)/b.For.Seconds())
	if cost > b.Most {
		return fmt.Errorf("%d browsers take %.1f %% of the throughput, at most %.1f %% may be", b.Browsers, cost, b.Most)
	}
	return nil
}

// pages measures how long each page takes, of what the rounds have left.
func (b bench) pages(ctx context.Context) error {
	browser, err := b.signIn(ctx)
	if err != nil {
		return err
	}
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
