package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"sluice/cmd/internal/run"
	"sluice/pkg/load"
)

type loadCmd struct {
	Load       load.Config   `embed:""`
	TokenFile  string        `default:"./data/token" help:"File with the access token, as sluice up keeps it."`
	Simulated  bool          `help:"Post what a simulated workflow engine has written until now: processes with their diagrams, instances, incidents, variables, decisions."`
	Over       time.Duration `help:"How long the simulated engine has run; 24h with --records. Without both it has run for a day, with a thousand instances in the last hour."`
	Until      time.Time     `placeholder:"TIME" help:"When it has stopped, such as 2026-01-12T11:00:00Z; default now. With --seed the records are the same each time."`
	Full       bool          `help:"Every record names its partition and position, as those of exporters do."`
	ClickHouse string        `name:"clickhouse-http" help:"Address of ClickHouse's HTTP, such as 127.0.0.1:8123: wait until it has the records, compare them, and measure until then."`
	Wait       bool          `help:"Wait until all of it can be queried, at most 5 minutes: the api is asked, as ?wait=stored does."`
	Acked      string        `help:"File that gets what was acknowledged: the JSON of each request, one a line."`
	JSON       bool          `name:"json" help:"Print the report as JSON."`
	run.Operator
}

func (c *loadCmd) Run(ctx context.Context) (err error) {
	cfg := c.Load
	cfg.Progress = os.Stderr
	if cfg.Token == "" {
		kept, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return fmt.Errorf("no --token, and none in --token-file: %w", err)
		}
		cfg.Token = strings.TrimSpace(string(kept))
	}
	if c.Simulated {
		if cfg.Duration > 0 || c.Acked != "" || c.Over < 0 {
			return errors.New("--simulated posts --records of the time that --over names, which is not negative: it goes with neither --duration nor --acked")
		}
		if c.Until.IsZero() {
			c.Until = time.Now()
		}
		seed := cfg.Seed
		if seed == 0 {
			seed = uint64(c.Until.UnixNano())
		}
		switch {
		case cfg.Records > 0 || c.Over > 0:
			cfg.Records, c.Over = cmp.Or(cfg.Records, 100_000), cmp.Or(c.Over, 24*time.Hour)
			cfg.Source = load.History(seed, cfg.Records, c.Over, c.Until)
		default:
			cfg.Records, cfg.Source = maxDay, load.Day(seed, c.Until)
		}
	}
	if err := answers(ctx, cfg.URL); err != nil {
		return err
	}
	if c.Full {
		cfg.Envelope = load.FullEnvelope
	}
	if c.Wait {
		cfg.Stored = load.StoredAt(cfg)
	}
	if c.ClickHouse != "" {
		address, err := c.Operator.HTTP(c.ClickHouse)
		if err != nil {
			return err
		}
		cfg.Stored = load.StoredIn(address)
	}
	if c.Acked != "" {
		file, err := os.Create(c.Acked)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		var mu sync.Mutex
		cfg.Posted = func(records []byte, acked bool) error {
			if !acked {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			_, err := fmt.Fprintf(file, "%s\n", bytes.TrimSuffix(records, []byte("\n")))
			return err
		}
	}
	report, err := load.Run(ctx, cfg)
	if err != nil && report.Attempts == 0 {
		return err // it never began
	}
	if c.JSON {
		return errors.Join(err, json.NewEncoder(os.Stdout).Encode(report))
	}
	return errors.Join(err, report.WriteText(os.Stdout))
}

// maxDay is more than the records of load.Day.
const maxDay = 1_000_000

// answers tells at once that there is no server, before its requests are repeated.
func answers(ctx context.Context, api string) error {
	at, err := url.Parse(api)
	if err != nil || at.Host == "" {
		return nil // load.Run names what is wrong
	}
	host := at.Host
	if at.Port() == "" {
		host = net.JoinHostPort(at.Hostname(), at.Scheme)
	}
	ctx, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return fmt.Errorf("--url %s: no api answers (%w): start it with make run, or name the address of another one", at.Redacted(), err)
	}
	return conn.Close()
}
