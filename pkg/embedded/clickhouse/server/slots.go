package server

import (
	"context"
	"strconv"
	"time"

	"sluice/pkg/embedded/clickhouse/library"
)

// engine is the one engine of this process, and what its front keeps beside it.
type engine struct {
	*library.Engine
	slots   chan struct{}    // one token per statement that runs
	kept    [2]chan struct{} // further ones: for the ingester, for console and admin
	running running

	allowFiles bool                       // statements may leave the database
	limits     map[role]map[string]string // settings of users, which are the most they may have
	models     int64                      // bytes on disk that the database models may have
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

// prepare makes the database of the modeller, unless it is there, and the workloads
// that bound the memory of who reads.
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
		"CREATE OR REPLACE WORKLOAD console IN all SETTINGS max_memory = " + strconv.FormatInt(cfg.Analyst.Memory, 10),
	} {
		if err == nil {
			err = s.do(ctx, sql)
		}
	}
	return err
}

// slot waits for a place among the statements that may run at a time, at most
// wait. The place is taken until release.
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

// idle waits until the last statement has ended. None begins after it.
func (e *engine) idle() {
	for _, slots := range []chan struct{}{e.slots, e.kept[0], e.kept[1]} {
		for range cap(slots) {
			slots <- struct{}{}
		}
	}
}
