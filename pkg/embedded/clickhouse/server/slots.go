package server

import (
	"context"
	"strconv"
	"time"

	"sluice/pkg/embedded/clickhouse/library"
)

// engine is the engine of this process with the state of the server.
type engine struct {
	*library.Engine
	slots   chan struct{}    // one token per running statement
	kept    [2]chan struct{} // reserved ones: of the ingester, of console and admin
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

// prepare creates the database of the modeller and the workloads that limit the memory of
// readers.
func (e *engine) prepare(ctx context.Context, cfg Config) error {
	s, err := newSession(ctx, e, "", user{Role: roleAdmin}, false)
	if err != nil {
		return err
	}
	defer s.close()
	analysts := "intDiv(toUInt64(value), 3)"
	if cfg.Analysts > 0 {
		analysts = strconv.FormatInt(cfg.Analysts, 10)
	}
	_, err = s.conn.Run(ctx, "SELECT toString("+analysts+") FROM system.server_settings WHERE name = 'max_server_memory_usage'", "RawBLOB",
		func(chunk []byte) error { analysts = string(chunk); return nil })
	for _, sql := range []string{
		"CREATE DATABASE IF NOT EXISTS " + ModelsDatabase,
		"CREATE OR REPLACE RESOURCE memory (MEMORY RESERVATION)",
		"CREATE OR REPLACE WORKLOAD all",
		"CREATE OR REPLACE WORKLOAD analysts IN all SETTINGS max_memory = " + analysts,
	} {
		if err == nil {
			err = s.do(ctx, sql)
		}
	}
	return err
}

// slot waits, at most wait, for a slot of the running statements, and holds it until
// release.
func (e *engine) slot(ctx context.Context, as role, wait time.Duration) (release func(), err error) {
	var kept chan struct{}
	switch as {
	case roleIngester:
		kept = e.kept[0]
	case roleConsole, roleAdmin:
		kept = e.kept[1]
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case kept <- struct{}{}:
		return func() { <-kept }, nil
	case e.slots <- struct{}{}:
		return func() { <-e.slots }, nil
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
