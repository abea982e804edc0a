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
// Changes of users and dataset fields do not wait for ClickHouse, also not for one
// that is missing when the ingester starts.
type Ingester struct {
	Ops   string `default:"127.0.0.1:8082" help:"Address for operators: /metrics, /healthz, /readyz."`
	Pprof string `help:"Loopback address of Go profiles, /debug/pprof/, such as 127.0.0.1:6060; off when empty."`

	ClickHouse
	Ingest ingest.Config `embed:""`
	Retention
	Memory int64 `default:"536870912" help:"Memory of the process in bytes, which its lanes share: at least 48 MiB for each."`

	NATS
	Streams stream.Config `embed:""`

	Logging
	Healthcheck bool `help:"Ask the ingester on --ops whether it is ready, and exit 0 or 1."`
}

// ClickHouse says how a program reaches ClickHouse.
type ClickHouse struct {
	Warehouse    warehouse.Config `embed:""`
	PasswordFile string           `name:"clickhouse-password-file" type:"existingfile" help:"File of the password of the user in --clickhouse, one line."`
}

// Config is how, with the password.
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
		return cfg, errors.New("--clickhouse is no URL: clickhouse://user@host:9000/database") // the error would show it
	}
	if _, has := address.User.Password(); has || address.Query().Has("password") {
		return cfg, errors.New("--clickhouse has a password, and there is --clickhouse-password-file: give one of them")
	}
	address.User = url.UserPassword(address.User.Username(), password)
	cfg.URL = address.String()
	return cfg, nil
}

// Retention says how long what is no longer needed is kept.
type Retention struct {
	state.SweepConfig
	stream.PurgeConfig
}

// Run works until ctx ends, then finishes the block in flight.
func (i *Ingester) Run(ctx context.Context, log *slog.Logger) error {
	if err := i.Ingest.Check(); err != nil {
		return err
	}
	program := standalone{name: "ingester", ops: i.Ops, profiles: i.Pprof, memory: i.Memory, healthcheck: i.Healthcheck, nats: i.NATS, streams: i.Streams}
	return UntilStopped(ctx, program.run(ctx, log, func(lanes *stream.Stream, opsServer *ops.Server, log *slog.Logger) (Service, error) {
		return i.Work(lanes, func(context.Context) error { return nil }, opsServer, log), nil
	}))
}

// Work is the ingester on streams that it opens. reachable returns once it makes
// sense to look for ClickHouse. operators is run by the caller.
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
	config.Tracer = opsServer.Tracer("warehouse")
	db, err := warehouse.Open(config, log, reg)
	if err != nil {
		return err
	}
	defer db.Close()
	opsServer.AddCheck("clickhouse", db.Ping)

	store := state.New(lanes.State)
	ready := make(chan struct{})
	instance := instanceName() // one name in leases and positions
	cfg := i.Ingest
	cfg.Owner, cfg.SharedBytes, cfg.KnownBytes = instance, i.blocks(), i.identities()
	cfg.RepeatWindow, cfg.RepeatBytes = i.Streams.RepeatWindow, i.requests()
	cfg.Ready, cfg.Heartbeat, cfg.Tracer = ready, heartbeats(opsServer), opsServer.Tracer("ingest")
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
	// Ends with the ingester, and ends it when the schema is wrong.
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
	return RunInOrder(ctx, after(lanes, ingester.Run), after(lanes, prepare), purger.Run, sweeper.Run, lanes.Run)
}

// untilReady migrates and checks the warehouse, again and again while it can
// not be reached: the programs of a deployment start in any order.
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

// heartbeats gives every loop a heartbeat of its own.
func heartbeats(opsServer *ops.Server) func(loop string) (beat, end func()) {
	const stall = 2 * time.Minute // the longest insert and the longest pause between two tries
	return func(loop string) (beat, end func()) {
		h := opsServer.Heartbeat(loop, stall)
		return h.Beat, h.Retire
	}
}

// source reads lanes for the ingester.
type source struct {
	stream *stream.Stream
	ahead  func(lanes int) int // bytes to read ahead of each of so many lanes
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

// instanceName tells this process from every other one that ever ran.
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
