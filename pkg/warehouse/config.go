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

	"sluice/pkg/option"
)

// Config says which ClickHouse to use and how.
type Config struct {
	// More hosts follow separated by commas, and are tried in order. As query
	// parameters come secure=true (TLS), skip_verify, tls_server_name,
	// compress=none|lz4|zstd (default none to this machine, lz4 to another),
	// dial_timeout, and any setting of ClickHouse.
	URL string `name:"clickhouse" default:"clickhouse://default@127.0.0.1:9000/flow" help:"ClickHouse, native protocol: clickhouse://user:password@host:9000/database?secure=true"`

	Cluster string `name:"clickhouse-cluster" help:"Name of the ClickHouse cluster the schema is made for; a single server when empty."` // as in remote_servers

	// Each of these servers has to be reached from here, by the address and port in
	// remote_servers and as the user of URL.
	Single bool `name:"clickhouse-single" help:"Every shard of that cluster is one server: nothing is replicated and there is no Keeper."`

	InsertTimeout time.Duration `kong:"-" default:"60s"` // of one attempt; past it the outcome is unknown
	QueryTimeout  time.Duration `kong:"-" default:"60s"` // of one check, count, or statement of a migration that copies no rows
	Connections   int           `kong:"-" default:"8"`   // kept open for inserts; two for each lane that is worked on are enough

	Tracer trace.Tracer `kong:"-"` // of inserts; nothing is traced when nil
}

func (c Config) withDefaults() Config {
	option.Defaults(&c)
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
