package api

import (
	"errors"
	"fmt"
	"time"

	"sluice/pkg/record"
)

// Config says where the api listens and what it takes. Zero values stand for
// the defaults.
type Config struct {
	Listen  string // host:port; port 0 takes a free one; default 127.0.0.1:8080
	Elastic string // host:port that speaks Elasticsearch (elastic.go); empty: none
	TLSCert string // path of a PEM certificate chain, read again when it changes; empty: plain HTTP
	TLSKey  string // path of its PEM key

	BodyBytes     int           // longest body, after decompression; default 16 MiB
	BulkBytes     int           // longest body where Elasticsearch is spoken, likewise; default 64 MiB
	Records       int           // most records in one request; default 50 000
	RecordBytes   int           // longest record, at most 16 MiB; default 8 MiB
	Depth         int           // deepest nesting of a record; default 64
	Mask          []string      // members of records whose values are secrets, besides password
	Ratio         int           // most bytes one compressed byte may stand for, in bodies beyond 1 MiB; default 200
	PartBytes     int           // longest message in the stream, compressed, unless one record is longer; default 512 KiB
	InFlightBytes int64         // memory for bodies being read or published; default 64 MiB, or 256 MiB with Elastic; at least 4 × the longest body is needed
	InFlightWait  time.Duration // how long a request may wait for that memory; default 2 s

	Connections        int           // most connections at once; near it idle ones are closed, and at it more wait to be accepted; default 4096
	AddressConnections int           // most of them from one address; default a quarter of them
	HeaderTimeout      time.Duration // to read the header of a request; default 10 s
	BodyTimeout        time.Duration // to read a whole body; default 30 s
	BodyGrace          time.Duration // how long a body may be slower than BodyRate; default 5 s
	BodyRate           int           // bytes per second a body must keep up; default 16 KiB
	IdleTimeout        time.Duration // how long a connection is kept open between requests; default 2 min

	PublishTimeout time.Duration // to get a request into the stream, else 503; default 1.8 s
	StateWait      time.Duration // how long a reader waits for an accepted change to be applied; default 1 s
	Fields         int           // most dataset fields of one subject, tombstones included; default 10 000
	Documents      int           // most bodies of users and dataset fields parsed at once, some 20 MiB each at worst; default 4
	Rate           float64       // requests per second per subject whose token says nothing else; default 0: no limit
	AccessLog      bool          // log every request
	Drain          time.Duration // how long Run waits for requests in flight when it ends; default 8 s

	Version string // of the program, for the description of the routes; default what stands there
	Commit  string // that it was built from, likewise
}

func orElse[T int | int64 | time.Duration](v *T, otherwise T) {
	if *v <= 0 {
		*v = otherwise
	}
}

func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = "127.0.0.1:8080"
	}
	orElse(&c.BodyBytes, 16<<20)
	orElse(&c.Records, 50_000)
	orElse(&c.RecordBytes, min(8<<20, c.BodyBytes))
	orElse(&c.Depth, 64)
	orElse(&c.Ratio, 200)
	orElse(&c.PartBytes, 512<<10)
	orElse(&c.BulkBytes, 64<<20)
	orElse(&c.InFlightBytes, int64(4*c.longestBody()))
	orElse(&c.InFlightWait, 2*time.Second)
	orElse(&c.Connections, 4096)
	orElse(&c.AddressConnections, max(1, c.Connections/4))
	orElse(&c.HeaderTimeout, 10*time.Second)
	orElse(&c.BodyTimeout, 30*time.Second)
	orElse(&c.BodyGrace, 5*time.Second)
	orElse(&c.BodyRate, 16<<10)
	orElse(&c.IdleTimeout, 2*time.Minute)
	orElse(&c.PublishTimeout, 1800*time.Millisecond)
	orElse(&c.StateWait, time.Second)
	orElse(&c.Documents, 4)
	orElse(&c.Fields, 10_000)
	orElse(&c.Drain, 8*time.Second)
	return c
}

// longestRecord is what a message takes, if the record becomes smaller by being
// compressed.
const longestRecord = 16 << 20

// longestBody is the longest one that any door takes.
func (c Config) longestBody() int {
	if c.Elastic == "" {
		return c.BodyBytes
	}
	return max(c.BodyBytes, c.BulkBytes)
}

func (c Config) check() error {
	switch {
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("a TLS certificate needs its key, and a key its certificate")
	case c.InFlightBytes < 4*int64(c.longestBody()):
		return errors.New("the memory for bodies in flight is less than four times the longest body")
	case c.RecordBytes > c.BodyBytes:
		return errors.New("the longest record is longer than the longest body")
	case c.Elastic != "" && c.RecordBytes > record.MaxPartBytes-2:
		return fmt.Errorf("the longest record is longer than %d bytes: one that cannot be compressed would not fit into a message, and an exporter would repeat its bulk for ever", record.MaxPartBytes-2)
	case c.RecordBytes > longestRecord:
		return fmt.Errorf("the longest record is longer than the %d bytes that a message may have", longestRecord)
	case !(c.Rate >= 0):
		return errors.New("the rate is negative")
	}
	return nil
}

func (c Config) limits() (record.Limits, error) {
	mask, err := record.NewMask(c.Mask)
	if err != nil {
		return record.Limits{}, fmt.Errorf("members to mask: %w", err)
	}
	return record.Limits{Records: c.Records, RecordBytes: c.RecordBytes, Depth: c.Depth, Mask: mask, Shaped: true}, nil
}
