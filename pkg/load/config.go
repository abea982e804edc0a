package load

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/url"
	"time"

	"sluice/pkg/option"
)

// BatchPath is where records are posted when the URL names no path.
const BatchPath = "/flow/flowRecord/batch"

// Config says what to post, where, and how hard.
type Config struct {
	URL    string   `name:"url" default:"http://127.0.0.1:8080" help:"Where the api listens."` // http or https; BatchPath is added when it has no path
	Token  string   `help:"Access token; read from --token-file when empty."`                  // sent as "Authorization: Bearer …"; none is sent when empty
	Tokens []string `name:"also-token" help:"Further access tokens, each of another source: requests go out under each in turn, with records of their own."`

	Records     int64         `help:"Records to post; 100000 unless --duration is given."`
	Duration    time.Duration `help:"How long to post, such as 30s."`     // default without end
	Batch       int           `default:"500" help:"Records per request."` // 1 is sent as an object, more as an array
	Connections int           `default:"8" help:"Requests in flight at a time."`
	Rate        float64       `help:"Records per second; 0 as fast as they are acknowledged."` // each request is due at its own time whatever happened to those before
	Envelope    Envelope      `kong:"-"`                                                       // see GeneratorConfig
	Gzip        bool          `help:"Compress the requests."`
	NoKey       bool          `help:"Send no Idempotency-Key: a repeat is then told by the ids of the records."`

	Seed  uint64    `help:"Seed of the records; the same seed posts the same ids. 0 takes one not used before, with positions above those of every run before."`
	After int64     `kong:"-"` // see GeneratorConfig; default by the seed, or by Start when there was none
	Start time.Time `kong:"-"` // timestamp of the first record; default now

	// Source writes the records in place of a Generator, under one token. Seed,
	// Start and After decide nothing then but the keys of requests.
	Source Source `kong:"-"`

	PIDs     map[string]int `name:"pid" help:"Processes to measure, name=pid, separated by semicolons: until the last answer, or until all is stored with --clickhouse-http."` // the load itself is always measured
	Timeout  time.Duration  `default:"10s" help:"Of one attempt."`
	GiveUp   time.Duration  `default:"30s" help:"No further attempt at a request so long after its first."`
	Failures int            `default:"10" help:"End after so many requests that were not acknowledged."`

	// Stored waits until the records acknowledged can be queried. It is called
	// when all of them are, and what follows from it is in the report: the rate up
	// to there, and what the processes used up to there. Default: no wait,
	// and the processes are measured until the last answer.
	Stored func(ctx context.Context, acked Totals) error `kong:"-"`

	Posted   Posted      `kong:"-"` // default none
	Progress io.Writer   `kong:"-"` // shows a progress bar if it is a terminal; default none
	TLS      *tls.Config `kong:"-"` // for https; default the system's roots
}

// Posted is told what became of a request, once, when its client is done with it: its JSON
// (of a bulk its lines) and whether the api acknowledged it. Without that it may be stored
// or not. It is called by several goroutines, and keeps nothing of the JSON.
type Posted func(records []byte, acked bool) error

// set fills in the defaults and says what cannot be.
func (c *Config) set() error {
	if c.Timeout < 0 || c.GiveUp < 0 || c.Failures < 0 || c.Batch < 0 || c.Connections < 0 {
		return errors.New("timeout, give-up, failures, batch and connections cannot be negative")
	}
	option.Defaults(c)
	if c.Start.IsZero() {
		c.Start = time.Now()
	}
	if c.Seed == 0 && c.After == 0 {
		c.After = c.Start.UnixMicro() // no partition writes faster than that
	}
	for c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	switch {
	case c.Records < 0 || c.Duration < 0:
		return errors.New("records and duration cannot be negative")
	case c.Rate < 0 || math.IsNaN(c.Rate) || math.IsInf(c.Rate, 0):
		return fmt.Errorf("a rate of %v records per second cannot be kept", c.Rate)
	case c.Source != nil && len(c.Tokens) > 0:
		return errors.New("a source of records has one token")
	}
	if c.Records == 0 {
		c.Records = 100_000
		if c.Duration > 0 {
			c.Records = math.MaxInt64
		}
	}
	return nil
}

// target is the URL with its path.
func (c *Config) target() (*url.URL, error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, fmt.Errorf("url of the api: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("url of the api: %q is not like http://127.0.0.1:8080", u.Redacted())
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = BatchPath
	}
	return u, nil
}

// step is the time from one record's timestamp to the next one's.
func (c *Config) step() time.Duration {
	if c.Rate > 0 {
		return max(1, time.Duration(float64(time.Second)/c.Rate))
	}
	return 0
}

// authorization is the header that a token is sent in.
func authorization(token string) string {
	if token == "" {
		return ""
	}
	return "Bearer " + token
}
