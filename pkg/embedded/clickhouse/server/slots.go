package server

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"sluice/pkg/embedded/clickhouse/library"
)

// engine is the engine of this process with the state of the server.
type engine struct {
	*library.Engine
	slots   chan struct{}    // one token per running statement
	kept    [2]chan struct{} // reserved ones: of the ingester, of console and admin
	readers atomic.Int64     // running statements of analyst and modeller
	running running

	allowFiles bool                       // statements may access files and addresses
	limits     map[role]map[string]string // maximum settings of roles
	models     int64                      // disk limit of the database models, bytes
}

// openEngine loads the library and opens the data folder.
func openEngine(cfg Config) (*engine, error) {
	config, err := writeEngineConfig(cfg)
	if err != nil {
		return nil, err
	}
	opened, err := library.Open(cfg.Library, cfg.Data, config)
	if err != nil {
		return nil, err
	}
	return &engine{
		Engine: opened,
		slots:  make(chan struct{}, cfg.Slots-2*cfg.Kept), kept: [2]chan struct{}{make(chan struct{}, cfg.Kept), make(chan struct{}, cfg.Kept)},
		allowFiles: cfg.AllowFiles, limits: cfg.limits(), models: cfg.Models,
	}, nil
}

// prepare creates the database of the modeller.
func (e *engine) prepare(ctx context.Context) error {
	s, err := newSession(ctx, e, "", user{Role: roleAdmin}, false)
	if err != nil {
		return err
	}
	defer s.close()
	return s.do(ctx, "CREATE DATABASE IF NOT EXISTS "+ModelsDatabase)
}

// boundReaders kills the largest statement of analyst and modeller while all of them together use
// more memory than cfg.Analysts, until ctx ends. ClickHouse's reservation of memory for a workload
// would do the same, but its statements sometimes never ended, even when canceled.
func (e *engine) boundReaders(ctx context.Context, cfg Config, log *slog.Logger) error {
	s, err := newSession(ctx, e, "", user{Role: roleAdmin}, false)
	if err != nil {
		return err
	}
	defer s.close()
	limit := strconv.FormatInt(cfg.Analysts, 10)
	if cfg.Analysts == 0 {
		limit = "(SELECT intDiv(toUInt64(value), 3) FROM system.server_settings WHERE name = 'max_server_memory_usage')"
	}
	of := "Settings['workload'] = '" + workloads[roleAnalyst] + "'"
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
		if e.readers.Load() == 0 {
			continue
		}
		var id string
		_, err := s.conn.Run(ctx, "SELECT argMax(query_id, memory_usage) FROM system.processes WHERE "+of+" HAVING sum(memory_usage) > "+limit, "RawBLOB",
			func(chunk []byte) error { id += string(chunk); return nil })
		if err == nil && id != "" {
			log.Warn("clickhouse: analysts together use more memory than --analysts-memory: their largest statement is killed", "query_id", id)
			err = s.do(ctx, "KILL QUERY WHERE query_id = "+quoteText(id))
		}
		if err != nil && ctx.Err() == nil {
			log.Warn("clickhouse: the memory of analysts' statements cannot be read", "error", err)
		}
	}
}

// slot waits, at most wait, for a slot of the running statements, and holds it until
// release.
func (e *engine) slot(ctx context.Context, as role, wait time.Duration) (release func(), err error) {
	var kept chan struct{}
	readers := int64(0)
	switch as {
	case roleIngester:
		kept = e.kept[0]
	case roleConsole, roleAdmin:
		kept = e.kept[1]
	default:
		readers = 1
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case kept <- struct{}{}:
		return func() { <-kept }, nil
	case e.slots <- struct{}{}:
		e.readers.Add(readers)
		return func() { e.readers.Add(-readers); <-e.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
		return nil, library.Exceptionf("TOO_MANY_SIMULTANEOUS_QUERIES", "Too many simultaneous queries. Maximum: %d", cap(e.slots)+cap(kept))
	}
}

// idle waits until the last statement has ended, and blocks new ones
func (e *engine) idle() {
	for _, slots := range []chan struct{}{e.slots, e.kept[0], e.kept[1]} {
		for range cap(slots) {
			slots <- struct{}{}
		}
	}
}
