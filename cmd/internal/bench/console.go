package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
)

const slowest = 300 // ms, of the median of a page

// console measures how long each page of the console takes, of a deployment that has
// stored what a simulated engine wrote in a month. It prints what it saw.
func (b *bench) console(ctx context.Context, page *Page) error {
	return b.on(ctx, page, "console", func(d *deployment.Deployment) error {
		console, err := d.AddConsole(ctx)
		if err != nil {
			return err
		}
		site := "http://" + console.HTTP
		browser, err := signIn(ctx, site, d.Token)
		if err != nil {
			return err
		}
		b.note("store %d records", b.plan.many)
		if err := b.store(ctx, d, load.History(1, b.plan.many, span, time.Now()), b.plan.many, b.plan.many); err != nil {
			return err
		}
		all, err := b.pages(ctx, d, browser, site)
		page.Console = all
		b.tell(all)
		return err
	})
}

// pages measures how long each page takes.
func (b *bench) pages(ctx context.Context, d *deployment.Deployment, browser *http.Client, site string) (all rows, err error) {
	paths := []string{"/"}
	processes, err := d.Query(ctx, "SELECT DISTINCT bpmn_process_id FROM flow.process_instances ORDER BY bpmn_process_id")
	if err != nil {
		return nil, err
	}
	instance, err := d.Query(ctx, "SELECT concat('source=', source, '&key=', process_instance_key) FROM flow.v_process_instances WHERE incidents > 0 LIMIT 1")
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
		for range b.plan.asks {
			began := time.Now()
			if err := get(ctx, browser, site+path); err != nil {
				return nil, err
			}
			row.Runs = append(row.Runs, time.Since(began).Seconds()*1e3)
		}
		all = append(all, row)
	}
	return all, nil
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
func get(ctx context.Context, client *http.Client, page string) error {
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
	_, err = io.Copy(io.Discard, res.Body)
	return err
}
