package server

import (
	"context"
	"time"

	"sluice/pkg/embedded/clickhouse/library"
)

// engine is the one engine of this process, and what its front keeps beside it.
type engine struct {
	*library.Engine
	slots   chan struct{} // one token per statement that runs
	kept    chan struct{} // further ones, for the ingester alone
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
		slots:  make(chan struct{}, cfg.Slots-cfg.Kept), kept: make(chan struct{}, cfg.Kept),
		allowFiles: cfg.AllowFiles, limits: cfg.limits(), models: cfg.Models,
	}, nil
}

// makeModels makes the database of the modeller, unless it is there.
func (e *engine) makeModels(ctx context.Context) error {
	s, err := newSession(ctx, e, "", user{Role: roleAdmin}, false)
	if err != nil {
		return err
	}
	defer s.close()
	return s.do(ctx, "CREATE DATABASE IF NOT EXISTS "+ModelsDatabase)
}

// slot waits for a place among the statements that may run at a time, at most
// wait. The place is taken until release.
func (e *engine) slot(ctx context.Context, as role, wait time.Duration) (release func(), err error) {
	kept := e.kept
	if as != roleIngester {
		kept = nil
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
		return nil, library.Exceptionf("TOO_MANY_SIMULTANEOUS_QUERIES", "Too many simultaneous queries. Maximum: %d", cap(e.slots)+cap(e.kept))
	}
}

// idle waits until the last statement has ended. None begins after it.
func (e *engine) idle() {
	for range cap(e.slots) {
		e.slots <- struct{}{}
	}
	for range cap(e.kept) {
		e.kept <- struct{}{}
	}
}
