package api

import (
	"errors"
	"fmt"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/option"
	"sluice/pkg/record"
)

// Config configures the api. Its flags are those of the command line; zero values mean the
// defaults.
type Config struct {
	Listen  string `name:"http" default:"127.0.0.1:8080" help:"Address for clients."`
	TLS     `kong:"-"`
	Elastic string `name:"elasticsearch" placeholder:"ADDR" help:"Address for bulks of Elasticsearch clients such as Camunda's exporters, with the access token as password. Off when empty."`

	BulkBytes          int           `name:"max-bulk" default:"67108864" help:"Maximum bulk in bytes, after decompression. Bulks get memory for four, in addition to --memory."`
	BodyBytes          int           `name:"max-body" default:"16777216" help:"Maximum body in bytes, after decompression."`
	Records            int           `name:"max-records" default:"50000" help:"Maximum records in one request."`
	RecordBytes        int           `name:"max-record-bytes" default:"8388608" help:"Maximum record in bytes, at most 16 MiB."`
	Depth              int           `name:"max-depth" default:"64" help:"Maximum nesting of a record."`
	Ratio              int           `name:"max-ratio" default:"200" help:"Maximum compression ratio."`                                        // in bodies beyond 1 MiB
	InFlightBytes      int64         `name:"max-in-flight" default:"0" help:"Memory in bytes for bodies in flight; 0: a quarter of --memory."` // at least 4 × the longest body, which is the default without --memory
	Connections        int           `name:"max-connections" default:"4096" help:"Maximum connections; at the limit an idle one is closed for a new one."`
	AddressConnections int           `name:"max-connections-per-address" default:"0" help:"Maximum connections from one address; 0: a quarter of --max-connections. Raise it behind a proxy."`
	Fields             int           `name:"max-fields" default:"10000" help:"Maximum dataset fields of one subject, recently deleted ones included."`
	Rate               float64       `default:"0" help:"Requests per second of a token without a rate; 0: no limit."`
	AccessLog          bool          `help:"Log every request: method, route, status, bytes, seconds, address and subject. Rejected clients are always logged, sampled."`
	HeaderTimeout      time.Duration `default:"10s" help:"Time to read the header of a request."`
	BodyTimeout        time.Duration `default:"30s" help:"Time to read the body of a request."`
	Mask               []string      `placeholder:"MEMBER,..." help:"Members and variables of records whose values are stored as ***, ignoring case, at any depth, also in JSON texts; password always is."`

	ChunkBytes     int           `kong:"-" default:"524288"` // target size of a chunk, compressed, unless one record is larger
	InFlightWait   time.Duration `kong:"-" default:"2s"`     // limit of the wait for memory of a body
	BodyGrace      time.Duration `kong:"-" default:"5s"`     // initial time without BodyRate
	BodyRate       int           `kong:"-" default:"16384"`  // minimum bytes per second of a body
	IdleTimeout    time.Duration `kong:"-" default:"2m"`     // of a connection between requests
	PublishTimeout time.Duration `kong:"-" default:"1.8s"`   // to get a request into the stream, else 503
	StateWait      time.Duration `kong:"-" default:"1s"`     // limit of a reader's wait for an accepted change to be applied
	Documents      int           `kong:"-" default:"4"`      // concurrently parsed bodies of users and dataset fields, up to some 20 MiB each
	Drain          time.Duration `kong:"-" default:"8s"`     // limit of the wait for requests in flight at shutdown

	Version string `kong:"-"` // for the OpenAPI document; default: as written there
	Commit  string `kong:"-"` // of the build, likewise
}

// TLS is the certificate of the api; without it the api serves plain HTTP.
type TLS struct {
	TLSCert string `name:"tls-cert" type:"existingfile" help:"File of the PEM certificate chain; reloaded on change."`
	TLSKey  string `name:"tls-key" type:"existingfile" help:"File of its private key."`
}

// longest is the longest time of a request from its header to its publish.
func (c Config) longest() time.Duration {
	return c.InFlightWait*2 + c.BodyTimeout + c.PublishTimeout
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

// maxRecord is the message limit, for records that compression makes smaller.
const maxRecord = 16 << 20

// maxBody is the longest body of any port.
func (c Config) maxBody() int {
	if c.Elastic == "" {
		return c.BodyBytes
	}
	return max(c.BodyBytes, c.BulkBytes)
}

func (c Config) check() error {
	switch {
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("set both --tls-cert and --tls-key, or neither")
	case c.InFlightBytes < 4*int64(c.maxBody()):
		return errors.New("--max-in-flight is less than four times the longest body")
	case c.RecordBytes > c.BodyBytes:
		return errors.New("--max-record-bytes exceeds the longest body")
	case c.Elastic != "" && c.RecordBytes > flow.MaxChunkBytes-2:
		return fmt.Errorf("--max-record-bytes exceeds %d: an incompressible record would not fit into a message, and an exporter would retry its bulk forever", flow.MaxChunkBytes-2)
	case c.RecordBytes > maxRecord:
		return fmt.Errorf("--max-record-bytes exceeds the message limit of %d bytes", maxRecord)
	case !(c.Rate >= 0):
		return errors.New("--rate is negative")
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
