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

// BatchPath is the default path of posts.
const BatchPath = "/flow/flowRecord/batch"

type Config struct {
	URL    string   `name:"url" default:"http://127.0.0.1:8080" help:"URL of the api."` // http or https; BatchPath is added when it has no path
	Token  string   `help:"Access token; default: the content of --token-file."`        // sent as "Authorization: Bearer …"; empty: none
	Tokens []string `name:"also-token" help:"Further access tokens, each of another source: requests use each in turn, with records of its own."`

	Records     int64         `help:"Records to post; 100000 unless --duration is given."`
	Duration    time.Duration `help:"Duration of the run, such as 30s."`  // default: unlimited
	Batch       int           `default:"500" help:"Records per request."` // 1 is sent as an object, more as an array
	Connections int           `default:"8" help:"Concurrent requests."`
	Rate        float64       `help:"Records per second; 0 as fast as they are acknowledged."` // each request is due at its own time, independently of earlier ones
	Envelope    Envelope      `kong:"-"`                                                       // see GeneratorConfig
	Gzip        bool          `help:"Compress the requests."`
	NoKey       bool          `help:"Send no Idempotency-Key: a retry is then deduplicated by the ids of the records."`

	Seed  uint64    `help:"Seed of the records; the same seed posts the same ids. 0: a new one, with positions above those of all earlier runs."`
	After int64     `kong:"-"` // see GeneratorConfig; default by Seed, or by Start if that is 0
	Start time.Time `kong:"-"` // timestamp of the first record; default now

	// Source replaces the Generator, under one token. Seed, Start, and After then decide
	// only the keys of requests.
	Source Source `kong:"-"`

	PIDs     map[string]int `name:"pid" help:"Processes to measure, name=pid, separated by semicolons: until the last answer, or until all is stored with --clickhouse-http."` // this process is always measured
	Timeout  time.Duration  `default:"10s" help:"Timeout of one attempt."`
	GiveUp   time.Duration  `default:"30s" help:"Stop retrying a request this long after its first attempt."`
	Failures int            `default:"10" help:"End after this many unacknowledged requests."`

	// Stored waits until the acknowledged records are queryable. It is called once all
	// are acknowledged; the report then has the rate and the usage of processes up to
	// that time. Default: no wait, and usage up to the last answer.
	Stored func(ctx context.Context, acked Totals) error `kong:"-"`

	Posted   Posted      `kong:"-"` // default none
	Progress io.Writer   `kong:"-"` // of a progress bar, if a terminal; default none
	TLS      *tls.Config `kong:"-"` // default: the system's roots
}

// Posted receives the final result of each request: its JSON (of a bulk its lines) and
// whether the api acknowledged it. Without acknowledgement it may be stored or not. Calls
// are concurrent, and must not keep the JSON.
type Posted func(records []byte, acked bool) error

func (c *Config) set() error {
	if c.Timeout < 0 || c.GiveUp < 0 || c.Failures < 0 || c.Batch < 0 || c.Connections < 0 {
		return errors.New("timeout, give-up, failures, batch and connections cannot be negative")
	}
	option.Defaults(c)
	if c.Start.IsZero() {
		c.Start = time.Now()
	}
	if c.Seed == 0 && c.After == 0 {
		c.After = c.Start.UnixMicro() // no partition writes faster
	}
	for c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	switch {
	case c.Records < 0 || c.Duration < 0:
		return errors.New("records and duration cannot be negative")
	case c.Rate < 0 || math.IsNaN(c.Rate) || math.IsInf(c.Rate, 0):
		return fmt.Errorf("rate must be from 0 to a finite number of records per second, not %v", c.Rate)
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

// target returns the URL with its path.
func (c *Config) target() (*url.URL, error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, fmt.Errorf("url of the api: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("url of the api: %q is not a URL such as http://127.0.0.1:8080", u.Redacted())
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = BatchPath
	}
	return u, nil
}

// step returns the time between the timestamps of two records.
func (c *Config) step() time.Duration {
	if c.Rate > 0 {
		return max(1, time.Duration(float64(time.Second)/c.Rate))
	}
	return 0
}

func authorization(token string) string {
	if token == "" {
		return ""
	}
	return "Bearer " + token
}
