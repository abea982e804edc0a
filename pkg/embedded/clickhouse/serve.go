package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Serve makes this process the engine: it opens the data folder and serves it
// until ctx ends. It calls ready, if there is one, when both addresses answer;
// http is nil when HTTP is off.
//
// When ctx ends no further statement begins; those that run may finish for
// cfg.Drain, then they are killed, and the engine is closed. To stop at once,
// end the process: whatever was acknowledged is stored, and nothing of what was
// not is half of a part.
//
// A process can be the engine once: the library does not start a second time.
func Serve(ctx context.Context, cfg Config, log *slog.Logger, ready func(native, http net.Addr)) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	if cfg.Library, err = Locate(cfg.Library); err != nil {
		return err
	}
	if cfg.Data, err = filepath.Abs(cfg.Data); err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.Data, 0o700); err != nil {
		return fmt.Errorf("make the engine's data folder: %w", err)
	}
	unlock, err := lockFolder(ctx, cfg.Data)
	if err != nil {
		return err
	}
	defer unlock()
	tcp, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen for ClickHouse's native protocol: %w", err)
	}
	defer tcp.Close()
	var web net.Listener
	if cfg.HTTP != "" {
		if web, err = net.Listen("tcp", cfg.HTTP); err != nil {
			return fmt.Errorf("listen for ClickHouse over HTTP: %w", err)
		}
		defer web.Close()
	}
	started := time.Now()
	e, err := openEngine(cfg.Library, cfg.Data, cfg.Connections)
	if err != nil {
		return err
	}
	log.Info("clickhouse: engine is open", "version", e.version, "data", cfg.Data, "seconds", time.Since(started).Seconds())
	err = serveEngine(ctx, cfg, e, log, tcp, web, ready)
	e.close()
	log.Info("clickhouse: engine is closed")
	return err
}

// serveEngine serves an open engine until ctx ends and everything has stopped.
func serveEngine(ctx context.Context, cfg Config, e *engine, log *slog.Logger, tcp, web net.Listener, ready func(native, http net.Addr)) error {
	running, kill := context.WithCancel(context.WithoutCancel(ctx)) // what statements run under
	defer kill()
	n := newNative(cfg, e, log)
	var serving sync.WaitGroup
	failed := make(chan error, 2)
	serving.Go(func() { failed <- n.serve(running, tcp) })
	var server *http.Server
	var webAddr net.Addr
	if web != nil {
		server, webAddr = newWeb(running, cfg, e, log), web.Addr()
		serving.Go(func() {
			if err := server.Serve(web); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	if ready != nil {
		ready(tcp.Addr(), webAddr)
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	limit := time.AfterFunc(cfg.Drain, func() {
		log.Warn("clickhouse: statements still run, killing them", "after_seconds", cfg.Drain.Seconds())
		kill()
	})
	defer limit.Stop()
	tcp.Close()
	var draining sync.WaitGroup
	draining.Go(n.drain)
	if server != nil {
		draining.Go(func() {
			bound, cancel := context.WithTimeout(context.Background(), cfg.Drain)
			defer cancel()
			if server.Shutdown(bound) != nil {
				server.Close() // Ends the contexts of its requests, and with them their statements.
			}
		})
	}
	draining.Wait()
	serving.Wait()
	return err
}
