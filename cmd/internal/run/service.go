package run

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"sluice/pkg/dial"
	"sluice/pkg/ops"
	"sluice/pkg/stream"
)

// standalone is a service with its own process.
type standalone struct {
	name        string // of its connection to NATS
	ops         string // address of the ops port
	profiles    string // address of Go profiles; empty: off
	memory      int64  // bytes
	healthcheck bool   // only check the running program
	nats        NATS
	silence     time.Duration // longest silence of NATS; 0: the default
	streams     stream.Config
}

// run runs the service that build returns until ctx ends. The ops port is served until
// the service has stopped.
func (s standalone) run(ctx context.Context, log *slog.Logger, build func(*stream.Stream, *ops.Server, *slog.Logger) (Service, error)) error {
	if s.healthcheck {
		return askReady(ctx, s.ops)
	}
	if err := BoundMemory(s.memory); err != nil {
		return err
	}
	opsServer := OpsServer(ops.Config{Listen: s.ops, Profiles: s.profiles}, log)
	if _, err := opsServer.Listen(); err != nil {
		return err
	}
	connection, err := s.nats.Connection(s.name)
	if err != nil {
		return err
	}
	connection.Silence = s.silence
	nc, err := dial.Connect(connection, log, opsServer.Registry())
	if err != nil {
		return err
	}
	defer nc.Close()
	lanes, err := stream.New(nc, s.streams, log, opsServer.Registry())
	if err != nil {
		return err
	}
	runs, err := build(lanes, opsServer, log)
	if err != nil {
		return err
	}
	return RunInOrder(ctx, runs, opsServer.Run)
}

// OpsServer adds this version to cfg.
func OpsServer(cfg ops.Config, log *slog.Logger) *ops.Server {
	cfg.Version, cfg.Commit = Version()
	return ops.New(cfg, log)
}

// Service runs until its context ends, and then returns nil.
type Service = func(context.Context) error

// RunInOrder runs services. Each needs the ones after it until it has stopped. When ctx
// or any service ends, RunInOrder stops them one by one, in order.
func RunInOrder(ctx context.Context, services ...Service) error {
	if len(services) == 1 {
		return services[0](ctx)
	}
	firstCtx, stopFirst := context.WithCancel(ctx)
	defer stopFirst()
	restCtx, stopRest := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRest()

	rest := make(chan error, 1)
	go func() {
		defer stopFirst()
		rest <- RunInOrder(restCtx, services[1:]...)
	}()
	err := services[0](firstCtx)
	stopRest()
	return errors.Join(err, <-rest)
}

// after delays a service until the lanes are open.
func after(lanes *stream.Stream, next Service) Service {
	return func(ctx context.Context) error {
		if err := lanes.Opened(ctx); err != nil {
			return nil // stopped first
		}
		return next(ctx)
	}
}

// unlessStopped drops the error of a stop.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
