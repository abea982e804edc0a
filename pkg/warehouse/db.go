package warehouse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"sluice/pkg/option"
	"sluice/pkg/warehouse/schema"
)

// DB is one ClickHouse database. Safe for concurrent use.
type DB struct {
	cfg      Config
	name     string // of the database
	log      *slog.Logger
	metrics  *metrics
	queries  driver.Conn  // of all but inserts
	inserts  *connections // only inserts
	attempts atomic.Int64 // for unique query ids
	servers  *servers     // of a cluster
}

// Open makes a DB without connecting: ClickHouse may start later. Its errors are of the configuration.
func Open(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*DB, error) {
	cfg = cfg.withDefaults()
	o, err := cfg.options()
	if err != nil {
		return nil, err
	}
	db := &DB{cfg: cfg, name: o.Auth.Database, log: log, metrics: newMetrics(reg)}
	db.attempts.Store(time.Now().UnixNano())
	db.inserts = newConnections(o, cfg.Connections, db.metrics)

	// Every statement names the database, which may not exist yet: a session in it could not
	// even create it.
	o.Auth.Database = ""
	if db.queries, err = clickhouse.Open(o); err != nil {
		return nil, fmt.Errorf("open ClickHouse: %w", err)
	}
	db.servers = &servers{options: o}
	return db, nil
}

func (db *DB) Database() string { return db.name }

func (db *DB) Close() error {
	db.inserts.close()
	return errors.Join(db.queries.Close(), db.servers.close())
}

// Ping fails unless ClickHouse answers.
func (db *DB) Ping(ctx context.Context) error {
	if err := db.queries.Ping(ctx); err != nil {
		return fmt.Errorf("ping ClickHouse: %w", err)
	}
	return nil
}

// Answers sends a trivial query. An exception counts as an answer.
func (db *DB) Answers(ctx context.Context) error {
	err := db.Works(ctx)
	if _, _, answered := exception(err); answered {
		return nil
	}
	return err
}

// Works fails unless ClickHouse runs a trivial query, which needs file descriptors of its own.
func (db *DB) Works(ctx context.Context) error {
	var one uint8
	if err := db.queries.QueryRow(ctx, "SELECT 1").Scan(&one); err != nil {
		return fmt.Errorf("ClickHouse runs no statement: %w", err)
	}
	return nil
}

// version queries the server's version.
func (db *DB) version(ctx context.Context) (schema.Version, error) {
	v, err := db.queries.ServerVersion()
	if err != nil {
		return schema.Version{}, fmt.Errorf("query the version of ClickHouse: %w", err)
	}
	return schema.Version{Major: int(v.Version.Major), Minor: int(v.Version.Minor)}, nil
}

// knownSettings returns those settings that the server has.
func (db *DB) knownSettings(ctx context.Context, names []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	var known []string
	row := db.queries.QueryRow(ctx, "SELECT groupArray(name) FROM system.merge_tree_settings WHERE has(?, name)", names)
	if err := row.Scan(&known); err != nil {
		return nil, fmt.Errorf("query the settings of ClickHouse: %w", err)
	}
	return known, nil
}

func (db *DB) server(ctx context.Context) (schema.Server, error) {
	v, err := db.version(ctx)
	if err != nil {
		return schema.Server{}, err
	}
	settings, err := db.knownSettings(ctx, slices.Sorted(maps.Keys(schema.Writing)))
	if err != nil {
		return schema.Server{}, err
	}
	d := db.plain()
	d.Version, d.Settings = v, settings
	if d.Checks, err = lintSelect(); err != nil {
		return d, err
	}
	if d.Cluster != "" {
		d.Shards, err = db.shards(ctx)
	}
	return d, err
}

// plain is the server's description without a query.
func (db *DB) plain() schema.Server {
	return schema.Server{Database: db.name, Cluster: db.cfg.Cluster, Single: db.cfg.Single, BusinessKey: db.cfg.BusinessKey}
}

func (db *DB) exec(ctx context.Context, statement string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	return db.queries.Exec(ctx, statement, args...)
}

func (db *DB) row(ctx context.Context, doing, query string, args []any, dest ...any) error {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	if err := db.queries.QueryRow(ctx, query, args...).Scan(dest...); err != nil {
		return storeError(doing, err)
	}
	return nil
}

// each runs a query and calls f for every row of the result.
func (db *DB) each(ctx context.Context, doing, query string, args []any, f func(driver.Rows) error) error {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	return db.eachUntil(ctx, doing, query, args, f)
}

// eachUntil is each bounded only by ctx.
func (db *DB) eachUntil(ctx context.Context, doing, query string, args []any, f func(driver.Rows) error) error {
	rows, err := db.queries.Query(ctx, query, args...)
	if err != nil {
		return storeError(doing, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return storeError(doing, err)
	}
	return nil
}

// Config configures a DB.
type Config struct {
	// More hosts are separated by commas and tried in order. Query parameters are secure=true
	// (TLS), skip_verify, tls_server_name, compress=none|lz4|zstd (default none for this
	// machine, lz4 for others), dial_timeout, and settings of ClickHouse.
	URL string `name:"clickhouse" default:"clickhouse://default@127.0.0.1:9000/flow" help:"ClickHouse, native protocol: clickhouse://user:password@host:9000/database?secure=true"`

	Cluster string `name:"clickhouse-cluster" help:"Name of the ClickHouse cluster of the schema; empty: a single server."` // as in remote_servers

	// All servers must be reachable by address and port of remote_servers and the user of URL.
	Single bool `name:"clickhouse-single" help:"The shards of that cluster have one server each: no replication and no Keeper."`

	InsertTimeout time.Duration `kong:"-" default:"60s"` // of one attempt; after it the outcome is unknown
	QueryTimeout  time.Duration `kong:"-" default:"60s"` // of one query, or statement of a migration that copies no rows
	Connections   int           `kong:"-" default:"8"`   // kept open for inserts; two per lane suffice

	BusinessKey string `kong:"-"` // variable that has the business key of an instance; empty: as the database has it

}

func (c Config) withDefaults() Config {
	option.Defaults(&c)
	return c
}

// identifier is a name that needs no quotes.
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// options parses the URL. Errors do not contain the password.
func (c Config) options() (*clickhouse.Options, error) {
	o, err := clickhouse.ParseDSN(c.URL)
	if err != nil {
		return nil, fmt.Errorf("parse the ClickHouse URL: %w", err) // the driver hides credentials
	}
	if o.Protocol != clickhouse.Native {
		return nil, errors.New("parse the ClickHouse URL: it must begin with clickhouse://, since inserts need the native protocol")
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
		o.Settings["distributed_foreground_insert"] = 1   // a queue would acknowledge before storing
		o.Settings["distributed_product_mode"] = "global" // tables in subqueries mean all shards
		o.Settings["skip_unavailable_shards"] = 0         // a lookup fails without the rows of a server
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

// connections pools connections for inserts. A connection serves one insert at a time and returns to the pool only after a
// success: after an error the state of the wire is unknown.
type connections struct {
	options []ch.Options // one per host, tried in order
	metrics *metrics

	mu     sync.Mutex
	idle   []*ch.Client
	limit  int
	closed bool
}

func newConnections(o *clickhouse.Options, limit int, m *metrics) *connections {
	c := &connections{limit: limit, metrics: m}
	common := ch.Options{
		User:             o.Auth.Username,
		Password:         o.Auth.Password,
		ClientName:       "sluice",
		Compression:      compression(o.Compression.Method),
		DialTimeout:      o.DialTimeout,
		HandshakeTimeout: o.DialTimeout,
		TLS:              o.TLS,
		Settings:         settings(o.Settings),
	}
	if o.TLS == nil { // of TLS, every write after a failed one fails anyway
		common.Dialer = dialer{net.Dialer{Timeout: o.DialTimeout}}
	}
	for _, addr := range o.Addr {
		common.Address = addr
		c.options = append(c.options, common)
	}
	return c
}

// dialer makes connections that fail every write after a failed one: the server never reads a block with a gap.
type dialer struct{ net.Dialer }

func (d dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.Dialer.DialContext(ctx, network, address)
	return &connection{Conn: conn}, err
}

type connection struct {
	net.Conn
	failed atomic.Bool
}

func (c *connection) Write(b []byte) (int, error) {
	if c.failed.Load() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Write(b)
	if err != nil {
		c.failed.Store(true)
	}
	return n, err
}

func compression(m clickhouse.CompressionMethod) ch.Compression {
	switch m {
	case clickhouse.CompressionLZ4:
		return ch.CompressionLZ4
	case clickhouse.CompressionLZ4HC:
		return ch.CompressionLZ4HC
	case clickhouse.CompressionZSTD:
		return ch.CompressionZSTD
	}
	return ch.CompressionDisabled
}

// settings converts the settings of the URL.
func settings(s clickhouse.Settings) []ch.Setting {
	var all []ch.Setting
	for _, key := range slices.Sorted(maps.Keys(s)) {
		all = append(all, ch.Setting{Key: key, Value: fmt.Sprint(s[key]), Important: true})
	}
	return all
}

var (
	errClosed    = errors.New("the warehouse is closed")
	errUnreached = errors.New("no connection")
)

// get returns an idle connection, or a new one.
func (c *connections) get(ctx context.Context) (*ch.Client, error) {
	c.mu.Lock()
	closed := c.closed
	if n := len(c.idle); n > 0 && !closed {
		client := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return client, nil
	}
	c.mu.Unlock()
	if closed {
		return nil, errClosed
	}
	var all error
	for _, o := range c.options {
		client, err := ch.Dial(ctx, o)
		if err == nil {
			c.metrics.connects.Inc()
			return client, nil
		}
		all = errors.Join(all, fmt.Errorf("connect to %s: %w", o.Address, err))
	}
	return nil, fmt.Errorf("%w: %w", errUnreached, all)
}

// put returns a connection to the pool after a success.
func (c *connections) put(client *ch.Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle) >= c.limit {
		_ = client.Close()
		return
	}
	c.idle = append(c.idle, client)
}

// reset closes the idle connections: if one is broken, those of the same age most likely are too.
func (c *connections) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, client := range c.idle {
		_ = client.Close()
	}
	c.idle = nil
}

func (c *connections) close() {
	c.reset()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

type metrics struct {
	connects prometheus.Counter
	failures *prometheus.CounterVec
	parts    prometheus.Counter
	expired  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	auto := promauto.With(prometheus.WrapRegistererWithPrefix("sluice_warehouse_", reg))
	m := &metrics{
		connects: auto.NewCounter(prometheus.CounterOpts{Name: "connects_total", Help: "Connections opened for inserts into ClickHouse. Nearly constant while connections are reused."}),
		failures: auto.NewCounterVec(prometheus.CounterOpts{Name: "insert_failures_total", Help: "Inserts that ClickHouse did not confirm, by class: retry, halt, poison or unknown."}, []string{"class"}),
		parts:    auto.NewCounter(prometheus.CounterOpts{Name: "parts_total", Help: "Parts that inserts created in flow.records: one per month of a block. Merges in ClickHouse have to keep up with their rate."}),
	}
	m.expired = auto.NewCounter(prometheus.CounterOpts{
		Name: "expired_instances_total",
		Help: "Ended process instances that left the aggregate tables by --keep-instances of sluice migrate ttl.",
	})
	for _, class := range classNames {
		m.failures.WithLabelValues(class)
	}
	return m
}
