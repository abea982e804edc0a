package load

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/url"
	"time"
)

// BatchPath is where records are posted when the URL names no path.
const BatchPath = "/flow/flowRecord/batch"

// BulkPath is where bulks are posted when the URL names no path.
const BulkPath = "/_bulk"

// Config says what to post, where, and how hard.
type Config struct {
	URL   string // of the api, http or https; BatchPath is added when it has no path; default http://127.0.0.1:8080
	Token string // access token, sent as "Authorization: Bearer …"; none is sent when empty

	// Further access tokens, each of another source: requests go out under each
	// of them in turn, with records of its own.
	Tokens []string

	// Bulk makes each request a bulk as Elasticsearch has it: it adds a record of a
	// partition to one. Every connection then is the exporter of one partition,
	// whose records it posts one bulk after the other to BulkPath, the token being
	// the password. Default: requests are as Sluice has them.
	Bulk func(bulk []byte, partition int64, record []byte) []byte

	Records     int64         // stop after this many; default 100 000, or without end when Duration is set
	Duration    time.Duration // stop after this long; default without end
	Batch       int           // records per request, 1 is sent as an object, more as an array; default 500, of bulks 1000
	Connections int           // requests in flight at a time; default 8, of bulks 3
	Rate        float64       // records per second, each request due at its own time whatever happened to those before; default as fast as they are answered
	Envelope    Envelope      // see GeneratorConfig; bulks have FullEnvelope
	Gzip        bool          // compress bodies
	NoKey       bool          // send no Idempotency-Key: the api then tells a repeat by the ids of the records
	Prepare     bool          // make all bodies before the clock starts, in memory; needs Records

	Seed  uint64    // of the records, their ids included; default one that was not used before, with positions above those of every earlier run
	After int64     // see GeneratorConfig; default by the seed, or by Start when there was none
	Start time.Time // timestamp of the first record; default now

	// Writer writes the records in place of a Generator, under one token. Seed,
	// Start and After decide nothing then but the keys of requests.
	Writer Writer

	Timeout  time.Duration // of one attempt; default 10s
	GiveUp   time.Duration // no further attempt at a request this long after it was first sent; default 30s
	Failures int           // end the run after this many requests that were not acknowledged; default 10

	// Stored waits until the records acknowledged can be queried. It is called
	// when all of them are, and what follows from it is in the report: the rate up
	// to there, and what the processes used up to there. Default: no wait,
	// and the processes are measured until the last answer.
	Stored func(ctx context.Context, acked Totals) error

	Acked    io.Writer      // gets one line of ranges per acknowledged request, for ReadAcked; default none
	Progress io.Writer      // shows a progress bar if it is a terminal; default none
	PIDs     map[string]int // processes whose CPU and memory is measured, by name; the load itself is always measured
	TLS      *tls.Config    // for https; default the system's roots
}

// set fills in the defaults and says what cannot be.
func (c *Config) set() error {
	if c.URL == "" {
		c.URL = "http://127.0.0.1:8080"
	}
	batch, connections := 500, 8
	if c.Bulk != nil { // as Camunda's exporters
		batch, connections, c.Envelope, c.NoKey = 1000, 3, FullEnvelope, true
	}
	if c.Batch == 0 {
		c.Batch = batch
	}
	if c.Connections == 0 {
		c.Connections = connections
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if c.GiveUp == 0 {
		c.GiveUp = 30 * time.Second
	}
	if c.Failures == 0 {
		c.Failures = 10
	}
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
	case c.Records < 0 || c.Duration < 0 || c.Batch < 0 || c.Connections < 0 || c.Timeout < 0 || c.GiveUp < 0 || c.Failures < 0:
		return errors.New("records, duration, batch, connections, timeout, give-up and failures cannot be negative")
	case c.Rate < 0 || math.IsNaN(c.Rate) || math.IsInf(c.Rate, 0):
		return fmt.Errorf("a rate of %v records per second cannot be kept", c.Rate)
	case c.Prepare && c.Bulk != nil:
		return errors.New("bulks cannot be prepared: each connection makes its own")
	case c.Prepare && c.Records == 0:
		return errors.New("preparing the bodies needs to know how many records")
	case c.Writer != nil && (len(c.Tokens) > 0 || c.Bulk != nil):
		return errors.New("a writer of records has one token, and writes no bulks")
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
		if c.Bulk != nil {
			u.Path = BulkPath
		}
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
func (c *Config) authorization(token string) string {
	switch {
	case token == "":
		return ""
	case c.Bulk != nil:
		return "Basic " + base64.StdEncoding.EncodeToString([]byte("load:"+token))
	}
	return "Bearer " + token
}
