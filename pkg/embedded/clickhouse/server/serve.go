package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sluice/pkg/accept"
	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/embedded/clickhouse/supervise"
)

// Serve runs the engine in this process: it opens the data folder and serves it until ctx
// ends. It calls ready, unless nil, once both addresses answer; http is nil if HTTP is off.
//
// When ctx ends no new statement starts; running ones may finish within cfg.Drain, then they are killed, and the engine
// is closed. Killing the process is safe too: acknowledged inserts are stored, and unacknowledged ones leave no partial
// part.
//
// It can be called once per process, since the library cannot restart. On Linux the process is executed again, with the
// same arguments, to be confined to its data folder: code before Serve runs twice.
func Serve(ctx context.Context, cfg Config, log *slog.Logger, ready func(native, http net.Addr)) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	if cfg.Library, err = library.Locate(cfg.Library); err != nil {
		return err
	}
	if cfg.Data, err = filepath.Abs(cfg.Data); err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.Data, 0o700); err != nil {
		return fmt.Errorf("create the engine's data folder: %w", err)
	}
	var all accounts
	confined, err := library.Inherit(&all)
	if err != nil {
		return err
	}
	if !confined {
		if all, err = cfg.users(); err != nil { // impossible once confined
			return err
		}
		if cfg.AllowFiles {
			log.Warn("clickhouse: --allow-files is on: statements may access files and addresses")
		} else if err := library.Confine(ctx, cfg.Data, cfg.Library, all, log); err != nil {
			return err
		}
	}
	ctx, end, ready := supervise.Child(ctx, ready)
	defer end(nil)
	unlock, err := library.LockFolder(ctx, cfg.Data)
	if err != nil {
		return err
	}
	defer unlock()
	tcp, err := accept.Listen(accept.Config{Address: cfg.Listen, Max: 2 * cfg.Sessions}, log) // one too many gets an error
	if err != nil {
		return fmt.Errorf("listen for ClickHouse's native protocol: %w", err)
	}
	defer tcp.Close()
	var web *accept.Listener
	if cfg.HTTP != "" {
		if web, err = accept.Listen(accept.Config{Address: cfg.HTTP, Max: cfg.Sessions}, log); err != nil {
			return fmt.Errorf("listen for ClickHouse over HTTP: %w", err)
		}
		defer web.Close()
	}
	started := time.Now()
	if err := library.ForgetUnfinished(cfg.Data, log); err != nil {
		return err
	}
	e, err := openEngine(cfg)
	if err != nil {
		return err
	}
	if cfg.Secrets != "" {
		if err := e.prepare(ctx); err != nil {
			return err
		}
	}
	if confined {
		log.Info("clickhouse: the process is confined to its data folder", "by", "Landlock", "data", cfg.Data)
	}
	log.Info("clickhouse: engine is open", "version", e.Version, "data", cfg.Data, "seconds", time.Since(started).Seconds())
	if err := serveEngine(ctx, cfg, e, newLogins(all, log), log, tcp, web, ready); err != nil {
		return err // do not close the engine under running statements, or if the parent is gone
	}
	e.Close()
	log.Info("clickhouse: engine is closed")
	return nil
}

// serveEngine serves an open engine until ctx ends and all statements have stopped.
func serveEngine(ctx context.Context, cfg Config, e *engine, l *logins, log *slog.Logger, tcp, web *accept.Listener, ready func(native, http net.Addr)) error {
	running, kill := context.WithCancel(context.WithoutCancel(ctx)) // context of statements
	defer kill()
	n := newNative(cfg, e, l, log)
	server, kept := newWeb(running, cfg, e, l, log)
	failed := make(chan error, 3)
	bounded := make(chan struct{})
	bounding, unbound := context.WithCancel(running)
	defer unbound()
	go func() {
		defer close(bounded)
		if err := e.boundReaders(bounding, cfg, log); err != nil {
			failed <- err
		}
	}()
	var webAddr net.Addr
	go func() { failed <- n.serve(running, tcp) }()
	if web != nil {
		webAddr, server.ConnState = web.Addr(), web.State
		go func() { failed <- server.Serve(web) }()
	}
	if ready != nil {
		ready(tcp.Addr(), webAddr)
	}
	select {
	case <-ctx.Done():
	case err := <-failed:
		return err
	}
	if errors.Is(context.Cause(ctx), supervise.ErrOrphaned) {
		return supervise.ErrOrphaned
	}
	log.Info("clickhouse: stopping")
	tcp.Close()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		var all sync.WaitGroup
		all.Go(n.drain)
		all.Go(func() { server.Shutdown(running) })
		all.Wait()
		e.idle()
		unbound()
		<-bounded
		kept.close() // the engine closes after all its connections
	}()
	select {
	case <-drained:
		return nil
	case <-time.After(cfg.Drain):
	}
	log.Warn("clickhouse: killing running statements", "after_seconds", cfg.Drain.Seconds())
	kill()
	server.Close()
	select {
	case <-drained:
		return nil
	case <-time.After(killTimeout):
		return errors.New("killed statements of the ClickHouse engine do not end")
	}
}

// killTimeout bounds the end of killed statements.
const killTimeout = 5 * time.Second
