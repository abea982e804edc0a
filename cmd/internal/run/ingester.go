package run

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"
	"unicode"

	"sluice/cmd/internal/audit/expiry"
	"sluice/pkg/dial"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/lease"
	"sluice/pkg/ops"
	"sluice/pkg/state"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// Ingester is the ingester program and its options.
//
//	NATS JetStream ──pkg/stream──▶ pkg/ingest ──block──▶ pkg/warehouse ──▶ ClickHouse
//	                                   └──changes──▶ pkg/state ──▶ NATS KV
//
// Changes of users and dataset fields do not wait for ClickHouse, not even at start.
type Ingester struct {
	Ops   string `default:"127.0.0.1:8082" help:"Address for operators: /metrics, /healthz, /readyz."`
	Pprof string `help:"Loopback address of Go profiles, /debug/pprof/, such as 127.0.0.1:6060; off when empty."`

	ClickHouse
	Ingest ingest.Config `embed:""`
	Business
	Retention
	Memory int64 `default:"536870912" help:"Memory of the process in bytes, shared by its lanes: at least 48 MiB for each."`

	NATS
	Streams stream.Config `embed:""`

	Logging
	Healthcheck bool `help:"Check whether the ingester on --ops is ready, and exit with 0 or 1."`
}

// ClickHouse has the options of the connection to ClickHouse.
type ClickHouse struct {
	Warehouse    warehouse.Config `embed:""`
	PasswordFile string           `name:"clickhouse-password-file" type:"existingfile" help:"File with the password of the user in --clickhouse, one line."`
}

// Config adds the password from the file.
func (c ClickHouse) Config() (warehouse.Config, error) {
	cfg := c.Warehouse
	if cfg.URL != "" && !strings.Contains(cfg.URL, "://") { // an address, as sluice up prints it
		cfg.URL = "clickhouse://" + cfg.URL
		if !strings.Contains(c.Warehouse.URL, "/") {
			cfg.URL += "/flow"
		}
	}
	if c.PasswordFile == "" {
		return cfg, nil
	}
	password, err := dial.Line(c.PasswordFile)
	if err != nil {
		return cfg, fmt.Errorf("--clickhouse-password-file: %w", err)
	}
	address, err := url.Parse(cfg.URL)
	if err != nil {
		return cfg, errors.New("--clickhouse is not a URL: use clickhouse://user@host:9000/database") // err would show a password
	}
	if _, has := address.User.Password(); has || address.Query().Has("password") {
		return cfg, errors.New("--clickhouse has a password and --clickhouse-password-file is set: give one of them")
	}
	address.User = url.UserPassword(address.User.Username(), password)
	cfg.URL = address.String()
	return cfg, nil
}

// Business has the option of the variable with the business key.
type Business struct {
	BusinessKey string `help:"Variable with the business key of instances that have no businessId. Empty: unchanged. Only sluice rebuild applies it to earlier records."`
}

// Retention has the options of the retention of processed data.
type Retention struct {
	state.SweepConfig
	stream.PurgeConfig
}

// Run ingests until ctx ends, then finishes the block in flight.
func (i *Ingester) Run(ctx context.Context, log *slog.Logger) error {
	if err := i.Ingest.Check(); err != nil {
		return err
	}
	CollectOften()
	program := standalone{name: "ingester", ops: i.Ops, profiles: i.Pprof, memory: i.Memory, healthcheck: i.Healthcheck, nats: i.NATS, streams: i.Streams}
	return UntilStopped(ctx, program.run(ctx, log, func(lanes *stream.Stream, opsServer *ops.Server, log *slog.Logger) (Service, error) {
		return i.Work(lanes, func(context.Context) error { return nil }, opsServer, log), nil
	}))
}

// Work returns the ingester as a service that opens the streams. reachable returns once
// ClickHouse may accept connections. The caller runs opsServer.
func (i *Ingester) Work(lanes *stream.Stream, reachable Service, opsServer *ops.Server, log *slog.Logger) Service {
	started := opsServer.Starting("waiting for NATS, ClickHouse and its schema")
	return func(ctx context.Context) error { return i.work(ctx, lanes, reachable, opsServer, started, log) }
}

func (i *Ingester) work(ctx context.Context, lanes *stream.Stream, reachable Service, opsServer *ops.Server, started func(), log *slog.Logger) error {
	reg := opsServer.Registry()
	config, err := i.ClickHouse.Config()
	if err != nil {
		return err
	}
	config.BusinessKey = i.BusinessKey
	db, err := warehouse.Open(config, log, reg)
	if err != nil {
		return err
	}
	defer db.Close()
	opsServer.AddCheck("clickhouse", db.Ping)

	store := state.New(lanes.State)
	ready := make(chan struct{})
	instance := instanceName() // the owner in leases and lane states
	cfg := i.Ingest
	cfg.Owner, cfg.SharedBytes, cfg.KnownBytes = instance, i.blocks(), i.identities()
	cfg.RepeatWindow, cfg.RepeatBytes = i.Streams.RepeatWindow, i.requests()
	cfg.Ready, cfg.Heartbeat = ready, heartbeats(opsServer)
	ingester := ingest.New(cfg, ingest.Deps{
		Leases:      lease.New(lease.Config{Instance: instance, Bucket: lanes.Leases, TTL: stream.LeaseTTL, Lanes: lanes.LaneNumbers}, log, reg),
		Lanes:       source{lanes, i.readAhead},
		States:      stream.NewLaneStates(lanes),
		Tables:      db,
		Index:       db,
		DeadLetters: stream.NewDeadLetters(lanes),
		Forgets:     lanes,
		Expiry:      expiry.Of{Stream: lanes, DB: db},

		Audits:       state.NewAuditor(db),
		Changes:      state.NewApplier(store, reg),
		ChangeStates: stream.NewChangeStates(lanes),
	}, log, reg)
	opsServer.AddCheck("lanes", ingester.Check)
	// A schema error ends the ingester.
	prepare := func(ctx context.Context) error {
		err := reachable(ctx)
		if err == nil {
			err = untilReady(ctx, log, db)
		}
		if err != nil {
			return unlessStopped(ctx, err)
		}
		close(ready)
		started()
		<-ctx.Done()
		return nil
	}
	purger := stream.NewPurger(lanes, i.PurgeConfig)
	sweeper := state.NewSweeper(i.SweepConfig, store, lanes, log, reg)
	return RunInOrder(ctx, after(lanes, ingester.Run), after(lanes, prepare), func(ctx context.Context) error { return db.KeepHistory(ctx, ready) }, purger.Run, sweeper.Run, lanes.Run)
}

// untilReady migrates and checks the warehouse, and retries while it is unreachable: the
// programs of a deployment start in any order.
func untilReady(ctx context.Context, log *slog.Logger, db *warehouse.DB) error {
	const pause = time.Second
	for said := false; ; said = true {
		err := db.Migrate(ctx)
		if err == nil {
			err = db.Check(ctx)
		}
		if err == nil || !warehouse.Passing(err) {
			return err
		}
		if !said {
			log.Warn("waiting for ClickHouse", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

func heartbeats(opsServer *ops.Server) func(loop string) (beat, end func()) {
	const stall = 2 * time.Minute // longest insert plus longest pause between two attempts
	return func(loop string) (beat, end func()) {
		h := opsServer.Heartbeat(loop, stall)
		return h.Beat, h.Retire
	}
}

// source implements ingest.Deps.Lanes.
type source struct {
	stream *stream.Stream
	ahead  func(lanes int) int // bytes to read ahead per lane, of that many lanes
}

func (s source) Open(ctx context.Context, lane int, from uint64) (ingest.Reader, error) {
	ahead := s.ahead(len(s.stream.LaneNumbers()))
	reader, err := s.stream.OpenLane(ctx, lane, from, ahead)
	if err != nil {
		return nil, err
	}
	return reader, nil
}

func (s source) OpenChanges(ctx context.Context, from uint64) (ingest.Reader, error) {
	reader, err := s.stream.OpenChanges(ctx, from)
	if err != nil {
		return nil, err
	}
	return reader, nil
}

func (s source) Heads(ctx context.Context, lane int, from, to uint64, f func(*flow.Entry) error) error {
	return s.stream.Heads(ctx, lane, from, to, f)
}

func (s source) Revision(ctx context.Context, source string) (uint64, error) {
	return s.stream.Revision(ctx, source)
}

// instanceName is unique to this process, across hosts and restarts.
func instanceName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	plain := func(r rune) rune {
		if r < 128 && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return r
		}
		return '-'
	}
	return strings.Map(plain, host) + "-" + rand.Text()
}
