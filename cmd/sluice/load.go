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
	"path/filepath"
	"strings"
	"sync"
	"time"

	"sluice/cmd/internal/run"
	"sluice/pkg/load"
)

type loadCmd struct {
	Load       load.Config   `embed:""`
	TokenFile  string        `placeholder:"FILE" help:"File with the access token; default: token in --data."`
	Simulated  bool          `help:"Post the history of a simulated workflow engine: processes with their diagrams, instances, incidents, variables, decisions."`
	Over       time.Duration `help:"Time span of the simulated history; 24h with --records. Without both it is one day, with a thousand instances in the last hour."`
	Until      time.Time     `placeholder:"TIME" help:"End of the simulated history, such as 2026-01-12T11:00:00Z; default now. With --seed the records are the same each time."`
	Full       bool          `help:"Give every record a partition and a position, as exporters do."`
	ClickHouse string        `name:"clickhouse-http" help:"Address of ClickHouse's HTTP, such as 127.0.0.1:8123: wait until the records are stored, compare them, and include the wait in the measurement."`
	Wait       bool          `help:"Wait until all records are queryable, at most 5 minutes, by ?wait=stored of the api."`
	Acked      string        `help:"File for the acknowledged requests, the JSON of one per line."`
	JSON       bool          `name:"json" help:"Print the report as JSON."`
	run.Operator
}

func (c *loadCmd) Run(ctx context.Context) (err error) {
	cfg := c.Load
	cfg.Progress = os.Stderr
	if cfg.Token == "" {
		kept, err := os.ReadFile(cmp.Or(c.TokenFile, filepath.Join(c.Data, "token")))
		if err != nil {
			return fmt.Errorf("no access token: give --token, --token-file, or the --data of sluice up: %w", err)
		}
		cfg.Token = strings.TrimSpace(string(kept))
	}
	if c.Simulated {
		if cfg.Duration > 0 || c.Acked != "" || c.Over < 0 {
			return errors.New("--simulated excludes --duration and --acked, and --over must not be negative: limit it with --records or --over")
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
		return err // nothing was posted
	}
	if c.JSON {
		return errors.Join(err, json.NewEncoder(os.Stdout).Encode(report))
	}
	return errors.Join(err, report.WriteText(os.Stdout))
}

// maxDay exceeds the records of load.Day.
const maxDay = 1_000_000

// answers fails quickly without a server; load.Run would retry for long.
func answers(ctx context.Context, api string) error {
	at, err := url.Parse(api)
	if err != nil || at.Host == "" {
		return nil // load.Run reports the invalid URL
	}
	host := at.Host
	if at.Port() == "" {
		host = net.JoinHostPort(at.Hostname(), at.Scheme)
	}
	ctx, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", host)
	if err != nil {
		return fmt.Errorf("--url %s: the api does not answer (%w): start it with make run, or give another address", at.Redacted(), err)
	}
	return conn.Close()
}
