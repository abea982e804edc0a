package warehouse

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"go.opentelemetry.io/otel/trace"
)

// Config says which ClickHouse to use and how.
type Config struct {
	// URL is clickhouse://user:password@host:9000/flow, the native protocol.
	// More hosts follow separated by commas, and are tried in order. As query
	// parameters come secure=true (TLS), skip_verify, tls_server_name,
	// compress=none|lz4|zstd (default none to this machine, lz4 to another),
	// dial_timeout, and any setting of ClickHouse.
	// Default clickhouse://default@127.0.0.1:9000/flow.
	URL string

	// Cluster is the name, as in remote_servers, of the cluster that the
	// schema is made for. Default empty: a single server.
	Cluster string

	// Single says that every shard of the cluster is one server, without replicas
	// and without Keeper. Then each has to be reached from here, by the address
	// and port in remote_servers and as the user of URL.
	Single bool

	InsertTimeout time.Duration // of one attempt; past it the outcome is unknown; default 60 s
	QueryTimeout  time.Duration // of one check, count, or statement of a migration that copies no rows; default 60 s
	Connections   int           // kept open for inserts; two for each lane that is worked on are enough; default 8

	Tracer trace.Tracer // of inserts; nothing is traced when nil
}

// DefaultURL is the embedded server of `sluice up`.
const DefaultURL = "clickhouse://default@127.0.0.1:9000/flow"

func (c Config) withDefaults() Config {
	if c.URL == "" {
		c.URL = DefaultURL
	}
	if c.InsertTimeout <= 0 {
		c.InsertTimeout = 60 * time.Second
	}
	if c.QueryTimeout <= 0 {
		c.QueryTimeout = 60 * time.Second
	}
	if c.Connections <= 0 {
		c.Connections = 8
	}
	return c
}

// identifier is what may stand unquoted in the schema.
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// options parses the URL. No error repeats the password.
func (c Config) options() (*clickhouse.Options, error) {
	o, err := clickhouse.ParseDSN(c.URL)
	if err != nil {
		return nil, fmt.Errorf("parse the ClickHouse URL: %w", err) // the driver hides credentials
	}
	if o.Protocol != clickhouse.Native {
		return nil, errors.New("parse the ClickHouse URL: it must begin with clickhouse://, inserts need the native protocol")
	}
	if o.Auth.Database == "" {
		o.Auth.Database = "flow"
	}
	if !identifier.MatchString(o.Auth.Database) {
		return nil, errors.New("parse the ClickHouse URL: the database is not a plain name")
	}
	if c.Cluster != "" && !identifier.MatchString(c.Cluster) {
		return nil, errors.New("the name of the ClickHouse cluster is not a plain name")
	}
	for i, addr := range o.Addr {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			o.Addr[i] = net.JoinHostPort(addr, "9000")
		}
	}
	if o.Compression == nil {
		o.Compression = &clickhouse.Compression{Method: clickhouse.CompressionLZ4}
		if onThisMachine(o.Addr) {
			o.Compression.Method = clickhouse.CompressionNone
		}
	}
	if o.DialTimeout <= 0 {
		o.DialTimeout = 5 * time.Second
	}
	o.ReadTimeout = c.QueryTimeout
	o.MaxOpenConns, o.MaxIdleConns = c.Connections, c.Connections
	o.ConnMaxLifetime = 10 * time.Minute
	o.Settings["async_insert"] = 0
	if c.Cluster != "" {
		o.Settings["distributed_foreground_insert"] = 1   // a queue would acknowledge before it stores
		o.Settings["distributed_product_mode"] = "global" // a table in a subquery means all shards of it
	}
	return o, nil
}

func onThisMachine(addrs []string) bool {
	for _, addr := range addrs {
		host, _, _ := net.SplitHostPort(addr)
		ip, err := netip.ParseAddr(host)
		if host != "localhost" && (err != nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}
