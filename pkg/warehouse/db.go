package warehouse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/prometheus/client_golang/prometheus"
)

// DB is one ClickHouse database. Safe for concurrent use; inserts of different
// lanes run at once.
type DB struct {
	cfg      Config
	name     string // of the database
	log      *slog.Logger
	metrics  *metrics
	queries  driver.Conn  // all but inserts
	inserts  *connections // only inserts
	attempts atomic.Int64 // makes query ids unique
	servers  *servers     // of a cluster
}

// Open prepares a DB and does not connect: ClickHouse may come up later. The
// error is about the configuration.
func Open(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*DB, error) {
	cfg = cfg.withDefaults()
	o, err := cfg.options()
	if err != nil {
		return nil, err
	}
	db := &DB{cfg: cfg, name: o.Auth.Database, log: log, metrics: newMetrics(reg)}
	db.attempts.Store(time.Now().UnixNano())
	db.inserts = newConnections(o, cfg.Connections, db.metrics)

	// The database is named in every statement and may not exist yet: a
	// session in it could not even create it.
	o.Auth.Database = ""
	if db.queries, err = clickhouse.Open(o); err != nil {
		return nil, fmt.Errorf("open ClickHouse: %w", err)
	}
	db.servers = &servers{options: o}
	return db, nil
}

// Database is the name of the database.
func (db *DB) Database() string { return db.name }

// Close closes the connections.
func (db *DB) Close() error {
	db.inserts.close()
	return errors.Join(db.queries.Close(), db.servers.close())
}

// Ping returns nil when ClickHouse answers.
func (db *DB) Ping(ctx context.Context) error {
	if err := db.queries.Ping(ctx); err != nil {
		return fmt.Errorf("ping ClickHouse: %w", err)
	}
	return nil
}

// Answers asks ClickHouse for something that takes no time. A refusal is an
// answer too.
func (db *DB) Answers(ctx context.Context) error {
	var one uint8
	err := db.queries.QueryRow(ctx, "SELECT 1").Scan(&one)
	if _, _, answered := exception(err); answered {
		return nil
	}
	return err
}

// version asks the server for its version.
func (db *DB) version(ctx context.Context) (version, error) {
	v, err := db.queries.ServerVersion()
	if err != nil {
		return version{}, fmt.Errorf("ask for the version of ClickHouse: %w", err)
	}
	return version{int(v.Version.Major), int(v.Version.Minor)}, nil
}

// knownSettings asks the server which of the settings it has.
func (db *DB) knownSettings(ctx context.Context, names []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	var known []string
	row := db.queries.QueryRow(ctx, "SELECT groupArray(name) FROM system.merge_tree_settings WHERE has(?, name)", names)
	if err := row.Scan(&known); err != nil {
		return nil, fmt.Errorf("ask for the settings of ClickHouse: %w", err)
	}
	return known, nil
}

func (db *DB) dialect(ctx context.Context) (dialect, error) {
	v, err := db.version(ctx)
	if err != nil {
		return dialect{}, err
	}
	settings, err := db.knownSettings(ctx, slices.Sorted(maps.Keys(writingSettings)))
	if err != nil {
		return dialect{}, err
	}
	d := db.plain()
	d.Version, d.Settings = v, settings
	if d.Cluster != "" {
		d.Shards, err = db.shards(ctx)
	}
	return d, err
}

// plain is the dialect as far as nobody has to be asked for it.
func (db *DB) plain() dialect {
	return dialect{Database: db.name, Cluster: db.cfg.Cluster, Single: db.cfg.Single}
}
