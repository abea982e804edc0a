package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
)

// often multiplies the refresh rates of console and browsers while their cost is measured, and
// divides the cost, which is smaller than the differences between runs.
const often = 5

// viewed are the views of one page of the console, with different parameters.
type viewed struct {
	Page    string
	Views   int
	Runs    []float64 // ms, all runs of all views
	Slowest string    // view with the highest median
	Worst   float64   // that median, ms
}

func (v viewed) Median() float64 { return median(v.Runs) }

// console measures every view of the console over 30 days, and the throughput lost to ten
// browsers.
func (b *bench) console(ctx context.Context, d *deployment.Deployment, page *Page) error {
	p, err := d.AddConsole(ctx, "--every", (time.Second / often).String())
	if err != nil {
		return err
	}
	one, err := signIn(ctx, "http://"+p.HTTP, d.Token)
	if err != nil {
		return err
	}
	views, err := one.crawl(ctx)
	if err != nil {
		return err
	}
	worst := rows{{What: fmt.Sprintf("slowest of %d views over 30 days, median", len(views)), Unit: "ms", Goal: atMost(300, 0)}}
	for _, view := range views {
		link, runs := view.link, []float64{view.ms}
		for range b.plan.asks - 1 {
			_, ms, err := one.get(ctx, link)
			if err != nil {
				return err
			}
			runs = append(runs, ms)
		}
		b.note("%s: %s ms", link, number(median(runs)))
		path, _, _ := strings.Cut(link, "?")
		i := slices.IndexFunc(page.Viewed, func(v viewed) bool { return v.Page == path })
		if i < 0 {
			i, page.Viewed = len(page.Viewed), append(page.Viewed, viewed{Page: path})
		}
		v := &page.Viewed[i]
		v.Views++
		v.Runs = append(v.Runs, runs...)
		if m := median(runs); m > v.Worst {
			v.Slowest, v.Worst = link, m
		}
	}
	slowest := slices.MaxFunc(page.Viewed, func(a, b viewed) int { return int(a.Worst - b.Worst) })
	worst.add(slowest.Worst)
	page.Budgets = worst
	if err := page.writeHistory(b.cfg.Out); err != nil { // the views outlive a failure of the browsers
		return err
	}
	watched, err := b.watched(ctx, d, p.HTTP)
	page.Budgets = append(worst, watched...)
	b.print(page.Budgets)
	return err
}

// watched measures the throughput lost to ten browsers: runs with and without them
// alternate, in pairs during which the engine does not merge.
func (b *bench) watched(ctx context.Context, d *deployment.Deployment, address string) (rows, error) {
	r := rows{
		{What: "ten browsers with the first page open: share of the throughput", Unit: "%", Goal: atMost(2, 0)},
		{What: "ten browsers that refresh the processes of 30 days: share of the throughput", Unit: "%", Goal: atMost(2, 0)},
		{What: "– throughput without browsers, requests of 500", Unit: "rec/s"},
	}
	var all []*browser
	for range 10 {
		one, err := signIn(ctx, "http://"+address, d.Token)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	cfg := load.Config{Batch: 500, Connections: connections, Duration: b.plan.watched}
	if err := b.warmUp(ctx, d, cfg); err != nil {
		return nil, err
	}
	for n := range b.plan.runs * b.plan.pairs {
		for i, w := range []struct {
			links []string
			every time.Duration
		}{{[]string{"/"}, time.Second / often}, {months(time.Now(), often), 15 * time.Second / often}} {
			alone, with, err := b.pair(ctx, d, job{load: cfg, beside: func(ctx context.Context) (func() error, error) {
				deployment.Sleep(ctx, time.Until(time.Now().Truncate(cfg.Duration).Add(cfg.Duration))) // until the console's next reading
				return reload(ctx, all, w.links, w.every), nil
			}}, n%2 == 1)
			if err != nil {
				return nil, err
			}
			b.note("%s: %s rec/s, with browsers %s", w.links[0], number(alone), number(with))
			r[i].Runs = append(r[i].Runs, 100*(1-with/alone)/often)
			r[2].Runs = append(r[2].Runs, alone)
		}
	}
	return r, nil
}

// pair returns the rates of a load alone, and with the job's concurrent work.
func (b *bench) pair(ctx context.Context, d *deployment.Deployment, j job, reverse bool) (alone, with float64, err error) {
	if err := errors.Join(b.settle(ctx, d), d.Exec(ctx, "SYSTEM STOP MERGES")); err != nil {
		return 0, 0, err
	}
	for _, beside := range []bool{reverse, !reverse} {
		one := j
		if !beside {
			one.beside = nil
		}
		deployment.Sleep(ctx, time.Until(time.Now().Truncate(j.load.Duration).Add(j.load.Duration))) // until a refresh reads anew
		p, err := b.once(ctx, d, one)
		if err != nil {
			return 0, 0, err
		}
		if beside {
			with = p.StoredPerSec
		} else {
			alone = p.StoredPerSec
		}
	}
	return alone, with, d.Exec(ctx, "SYSTEM START MERGES")
}

// browser is a signed-in client of the console.
type browser struct {
	address string
	client  *http.Client
}

func signIn(ctx context.Context, address, token string) (*browser, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	b := &browser{address, &http.Client{Jar: jar, Timeout: time.Minute}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/sign-in", strings.NewReader(url.Values{"token": {token}, "next": {"/"}}.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	_, err = b.do(req)
	return b, err
}

func (b *browser) do(req *http.Request) (string, error) {
	res, err := b.client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	// A part that reaches its time limit misses the goal; any other missing part is a failure.
	missing := strings.Contains(string(body), `class="missing"`) && !strings.Contains(string(body), "no answer within")
	if err == nil && (res.StatusCode != http.StatusOK || missing) {
		err = fmt.Errorf("console: %s: %s: a part of the page is missing", req.URL, res.Status)
	}
	return string(body), err
}

// get requests a page, and returns its body and the ms until it was complete.
func (b *browser) get(ctx context.Context, link string) (string, float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.address+link, nil)
	if err != nil {
		return "", 0, err
	}
	began := time.Now()
	body, err := b.do(req)
	return body, float64(time.Since(began)) / float64(time.Millisecond), err
}

// months are links to the processes of 30 days, which differ by seconds: browsers share the
// answers of one, but not those of two.
func months(now time.Time, n int) (links []string) {
	for i := range n {
		from := now.Add(-30*24*time.Hour + time.Duration(i)*time.Second)
		links = append(links, "/processes?refresh=1&from="+from.UTC().Format(time.RFC3339))
	}
	return links
}

// reload loads pages in turn in every browser until the returned function is called.
func reload(ctx context.Context, all []*browser, links []string, every time.Duration) (end func() error) {
	ctx, stop := context.WithCancel(ctx)
	var g errgroup.Group
	for i, one := range all {
		g.Go(func() error {
			deployment.Sleep(ctx, every*time.Duration(i)/time.Duration(len(all)))
			for n := i; ctx.Err() == nil; n++ {
				began := time.Now()
				if _, _, err := one.get(ctx, links[n%len(links)]); err != nil && ctx.Err() == nil {
					return err
				}
				deployment.Sleep(ctx, every-time.Since(began))
			}
			return nil
		})
	}
	return func() error { stop(); return g.Wait() }
}

var (
	linked = regexp.MustCompile(`(?:href|data-later|data-xml)="(/[^"]*)"`)
	// alike are parameters that do not make another view: values, pages, and times.
	alike = []string{"source", "window", "from", "to", "as_of", "any", "refresh", "page"}
)

// crawled is a link to a view, and the ms that its first request took.
type crawled struct {
	link string
	ms   float64
}

// crawl returns a link to each view that is at most two links behind the menu: to each page
// with each set of parameters. All of them are over 30 days.
func (b *browser) crawl(ctx context.Context) (all []crawled, err error) {
	seen, next := map[string]bool{}, []string{"/", "/processes"}
	for range 3 {
		var found []string
		for _, link := range next {
			link, view := ofMonth(html.UnescapeString(link))
			if link == "" || seen[view] {
				continue
			}
			seen[view] = true
			body, ms, err := b.get(ctx, link)
			if err != nil {
				return nil, err
			}
			all = append(all, crawled{link, ms})
			for _, m := range linked.FindAllStringSubmatch(body, -1) {
				found = append(found, m[1])
			}
		}
		next = found
	}
	return all, nil
}

// ofMonth is a link over 30 days, and the view that it leads to; empty for a file.
func ofMonth(link string) (month, view string) {
	at, err := url.Parse(link)
	if err != nil {
		return "", ""
	}
	values, names := at.Query(), []string{at.Path}
	if filepath.Ext(at.Path) != "" || values.Has("question") || values.Has("sql") {
		return "", ""
	}
	for name := range values {
		if !slices.Contains(alike, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range []string{"from", "to", "as_of"} {
		values.Del(name)
	}
	values.Set("window", "30d")
	return at.Path + "?" + values.Encode(), strings.Join(names, " ")
}
