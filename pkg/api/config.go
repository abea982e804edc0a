package api

import (
	"errors"
	"fmt"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/option"
	"sluice/pkg/record"
)

// Config says where the api listens and what it takes. Its flags are those of the
// command line; zero values stand for the defaults.
type Config struct {
	Listen  string `name:"http" default:"127.0.0.1:8080" help:"Address for clients."`
	TLS     `kong:"-"`
	Elastic string `name:"elasticsearch" placeholder:"ADDR" help:"Address where clients of Elasticsearch post bulks, as Camunda's exporters do: their password is the access token. Off when empty."`

	BulkBytes          int           `name:"max-bulk" default:"67108864" help:"Longest bulk in bytes, after decompression. Bulks get memory for four of them, beside --memory."`
	BodyBytes          int           `name:"max-body" default:"16777216" help:"Longest body in bytes, after decompression."`
	Records            int           `name:"max-records" default:"50000" help:"Most records in one request."`
	RecordBytes        int           `name:"max-record-bytes" default:"8388608" help:"Longest record in bytes, at most 16 MiB."`
	Depth              int           `name:"max-depth" default:"64" help:"Deepest nesting of a record."`
	Ratio              int           `name:"max-ratio" default:"200" help:"Most bytes one compressed byte may stand for."`                                      // in bodies beyond 1 MiB
	InFlightBytes      int64         `name:"max-in-flight" default:"0" help:"Memory in bytes for bodies being read or published; 0 for a quarter of --memory."` // at least 4 × the longest body; without a --memory that is the default
	Connections        int           `name:"max-connections" default:"4096" help:"Maximum connections; at the limit an idle one is closed for a new one."`
	AddressConnections int           `name:"max-connections-per-address" default:"0" help:"Most connections from one address; 0 for a quarter of --max-connections. Raise it behind a proxy."`
	Fields             int           `name:"max-fields" default:"10000" help:"Most dataset fields of one subject, those deleted lately included."`
	Rate               float64       `default:"0" help:"Requests per second of a token that says nothing else; 0 for no limit."`
	AccessLog          bool          `help:"Log every request: method, route, status, bytes, seconds, address and subject. Refusals for lack of rights are logged anyway, sampled."`
	HeaderTimeout      time.Duration `default:"10s" help:"Time to read the header of a request."`
	BodyTimeout        time.Duration `default:"30s" help:"Time to read the body of a request."`
	Mask               []string      `placeholder:"MEMBER,..." help:"Members and variables of records whose values are secrets, in any case of letters and at any depth, also in texts that are JSON: *** is stored instead, as it always is of password."`

	ChunkBytes     int           `kong:"-" default:"524288"` // longest message in the stream, compressed, unless one record is longer
	InFlightWait   time.Duration `kong:"-" default:"2s"`     // how long a request may wait for memory for its body
	BodyGrace      time.Duration `kong:"-" default:"5s"`     // how long a body may be slower than BodyRate
	BodyRate       int           `kong:"-" default:"16384"`  // bytes per second a body must keep up
	IdleTimeout    time.Duration `kong:"-" default:"2m"`     // how long a connection is kept open between requests
	PublishTimeout time.Duration `kong:"-" default:"1.8s"`   // to get a request into the stream, else 503
	StateWait      time.Duration `kong:"-" default:"1s"`     // how long a reader waits for an accepted change to be applied
	Documents      int           `kong:"-" default:"4"`      // most bodies of users and dataset fields parsed at once, some 20 MiB each at worst
	Drain          time.Duration `kong:"-" default:"8s"`     // how long Run waits for requests in flight when it ends

	Version string `kong:"-"` // of the program, for the description of the routes; default what stands there
	Commit  string `kong:"-"` // that it was built from, likewise
}

// TLS says by what the api is known to its clients; without it it speaks plain
// HTTP.
type TLS struct {
	TLSCert string `name:"tls-cert" type:"existingfile" help:"File of the PEM certificate chain; read again when it changes."`
	TLSKey  string `name:"tls-key" type:"existingfile" help:"File of its private key."`
}

func (c Config) withDefaults() Config {
	anyRecord := c.RecordBytes <= 0
	option.Defaults(&c)
	if anyRecord {
		c.RecordBytes = min(c.RecordBytes, c.BodyBytes)
	}
	if c.InFlightBytes <= 0 {
		c.InFlightBytes = int64(4 * c.maxBody())
	}
	if c.AddressConnections <= 0 {
		c.AddressConnections = max(1, c.Connections/4)
	}
	return c
}

// maxRecord is what a message takes, if the record becomes smaller by being
// compressed.
const maxRecord = 16 << 20

// maxBody is the longest one that any port takes.
func (c Config) maxBody() int {
	if c.Elastic == "" {
		return c.BodyBytes
	}
	return max(c.BodyBytes, c.BulkBytes)
}

func (c Config) check() error {
	switch {
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("a TLS certificate needs its key, and a key its certificate")
	case c.InFlightBytes < 4*int64(c.maxBody()):
		return errors.New("the memory for bodies in flight is less than four times the longest body")
	case c.RecordBytes > c.BodyBytes:
		return errors.New("the longest record is longer than the longest body")
	case c.Elastic != "" && c.RecordBytes > flow.MaxChunkBytes-2:
		return fmt.Errorf("the longest record is longer than %d bytes: one that cannot be compressed would not fit into a message, and an exporter would repeat its bulk for ever", flow.MaxChunkBytes-2)
	case c.RecordBytes > maxRecord:
		return fmt.Errorf("the longest record is longer than the %d bytes that a message may have", maxRecord)
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
