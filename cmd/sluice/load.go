package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"sluice/cmd/internal/run"
	"sluice/cmd/internal/simulated"
	"sluice/pkg/load"
	"sluice/pkg/load/camunda"
)

type loadCmd struct {
	URL         string         `name:"url" default:"http://127.0.0.1:8080" help:"Where the api listens."`
	Token       string         `help:"Access token; read from --token-file when empty."`
	AlsoToken   []string       `help:"Further access tokens, each of another source: requests go out under each in turn, with records of their own."`
	TokenFile   string         `default:"./data/token" help:"File with the access token, as sluice up keeps it."`
	Records     int64          `help:"Records to post; 100000 unless --duration is given."`
	Duration    time.Duration  `help:"How long to post, such as 30s."`
	Elastic     string         `name:"elasticsearch" placeholder:"URL" help:"Post bulks there, such as http://127.0.0.1:9200, where the api speaks Elasticsearch, as the exporters of Camunda's brokers do: each connection is the exporter of one partition."`
	Simulated   bool           `help:"Post what a simulated workflow engine has written until now: processes with their diagrams, instances, incidents, variables, decisions."`
	Over        time.Duration  `default:"24h" help:"How long the simulated engine has run."`
	Batch       int            `help:"Records per request; 500, of bulks 1000 unless given."`
	Connections int            `help:"Requests in flight at a time; 8, of bulks 3 unless given."`
	Full        bool           `help:"Every record names its partition and position, as those of bulks do."`
	Rate        float64        `help:"Records per second; 0 as fast as they are acknowledged."`
	Gzip        bool           `help:"Compress the requests."`
	Prepare     bool           `help:"Make all requests before the clock starts; needs --records."`
	Seed        uint64         `help:"Seed of the records; the same seed posts the same ids. 0 takes one not used before, with positions above those of every run before."`
	Pid         map[string]int `help:"Processes to measure, name=pid, separated by semicolons: until the last answer, or until all is stored with --clickhouse-http."`
	NoKey       bool           `help:"Send no Idempotency-Key: a repeat is then told by the ids of the records."`
	Timeout     time.Duration  `default:"10s" help:"Of one attempt."`
	GiveUp      time.Duration  `default:"30s" help:"No further attempt at a request so long after its first."`
	Failures    int            `default:"10" help:"End after so many requests that were not acknowledged."`
	ClickHouse  string         `name:"clickhouse-http" help:"Address of ClickHouse's HTTP, such as 127.0.0.1:8123: wait until it has the records, compare them, and measure until then."`
	Wait        bool           `help:"Wait until all of it can be queried, at most 5 minutes: the api is asked, as ?wait=stored does."`
	Acked       string         `help:"File that gets the ranges of records that were acknowledged."`
	JSON        bool           `name:"json" help:"Print the report as JSON."`
	run.Operator
}

func (c *loadCmd) Run(ctx context.Context) (err error) {
	token := c.Token
	if token == "" {
		kept, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return fmt.Errorf("no --token, and none in --token-file: %w", err)
		}
		token = strings.TrimSpace(string(kept))
	}
	cfg := load.Config{
		URL: c.URL, Token: token, Tokens: c.AlsoToken, Records: c.Records, Duration: c.Duration, Batch: c.Batch,
		Connections: c.Connections, Rate: c.Rate, Gzip: c.Gzip, Prepare: c.Prepare, Seed: c.Seed,
		NoKey: c.NoKey, Timeout: c.Timeout, GiveUp: c.GiveUp, Failures: c.Failures,
		Progress: os.Stderr, PIDs: c.Pid,
	}
	if c.Simulated {
		if c.Duration > 0 || c.Acked != "" || c.Over <= 0 {
			return errors.New("--simulated posts --records of the time that --over names, which is more than 0: it goes with neither --duration nor --acked")
		}
		if cfg.Records == 0 {
			cfg.Records = 100_000
		}
		now := time.Now()
		seed := c.Seed
		if seed == 0 {
			seed = uint64(now.UnixNano())
		}
		cfg.Writer = &simulated.Writer{Engine: simulated.Engine(seed, cfg.Records, c.Over, now)}
	}
	if c.Full {
		cfg.Envelope = load.FullEnvelope
	}
	if c.Wait {
		cfg.Stored = load.StoredAt(cfg)
	}
	if c.Elastic != "" {
		cfg.URL, cfg.Bulk = c.Elastic, camunda.Append
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
		cfg.Acked = file
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
