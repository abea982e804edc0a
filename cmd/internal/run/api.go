package run

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"sluice/pkg/api"
	"sluice/pkg/auth"
	"sluice/pkg/change"
	"sluice/pkg/ops"
	"sluice/pkg/state"
	"sluice/pkg/stream"
)

// API is the api program and its options.
//
//	clients ──HTTP──▶ pkg/api ──▶ pkg/auth: tokens and scopes
//	                     └──Submission──▶ pkg/stream ──▶ NATS JetStream
type API struct {
	Config api.Config `embed:""`
	api.TLS

	Ops   string `default:"127.0.0.1:8081" help:"Address for operators: /metrics, /healthz, /readyz."`
	Pprof string `help:"Loopback address of Go profiles, /debug/pprof/, such as 127.0.0.1:6060; off when empty."`

	FingerprintKey string `default:"fingerprint.key" help:"File of the key that fingerprints users' secret keys; generated when missing. Every api needs the same file."`

	Auth   auth.Config `embed:""`
	Memory int64       `default:"268435456" help:"Memory of the process in bytes; its budgets are shares of it."`
	NATS
	Streams stream.Config `embed:""`

	Logging
	Healthcheck bool `help:"Check whether the api on --ops is ready, and exit with 0 or 1."`
}

// config adds the version and the share of the memory.
func (a *API) config() (cfg api.Config, err error) {
	cfg = a.Config
	cfg.TLS = a.TLS
	cfg.Version, cfg.Commit = Version()
	cfg.InFlightBytes, err = a.inFlight()
	return cfg, err
}

// Run serves until ctx ends, then finishes the requests in flight.
func (a *API) Run(ctx context.Context, log *slog.Logger) error {
	program := standalone{name: "api", ops: a.Ops, profiles: a.Pprof, memory: a.Memory + Bulks(a.Config), healthcheck: a.Healthcheck, nats: a.NATS, silence: natsSilence, streams: a.Streams}
	return UntilStopped(ctx, program.run(ctx, log, a.Serve))
}

// natsSilence bounds the silence of a NATS connection of the api: clients are promised
// a 503 within 2 s. Other programs wait longer.
const natsSilence = 1200 * time.Millisecond

// Serve listens and returns the api as a service. The caller runs opsServer afterwards,
// so that a scraped api always accepts connections. The service opens the streams; until
// NATS is reachable every post is answered 503.
func (a *API) Serve(lanes *stream.Stream, opsServer *ops.Server, log *slog.Logger) (Service, error) {
	tokens, err := auth.New(a.Auth, log, opsServer.Registry())
	if err != nil {
		return nil, err
	}
	key, err := change.LoadOrCreateKey(a.FingerprintKey)
	if err != nil {
		return nil, fmt.Errorf("--fingerprint-key: %w", err)
	}
	publisher := stream.NewPublisher(lanes)
	usage := state.NewUsage(lanes.State, log)
	config, err := a.config()
	if err != nil {
		return nil, err
	}
	server, err := api.New(config, api.Deps{
		Auth: tokens, Stream: publisher, Progress: lanes, Changes: publisher, Last: lanes,
		State: state.New(lanes.State), Usage: usage, Dead: stream.NewDeadLetters(lanes),
		Secrets: &change.Secrets{Key: key},
	}, log, opsServer.Registry())
	if err != nil {
		return nil, err
	}
	if _, err := server.Listen(); err != nil {
		return nil, err
	}
	opsServer.AddCheck("stream", func(ctx context.Context) error {
		if err := lanes.Check(ctx); err != nil {
			return err
		}
		return publisher.Check()
	})
	opsServer.AddCheck("connections", server.Check)
	opsServer.AddCheck("tokens", tokens.Check)
	opsServer.List("/rejected", func() any { return server.Rejected() })

	return func(ctx context.Context) error {
		// The listener drains first: its requests in flight are still published.
		return RunInOrder(ctx, server.Run, tokens.Run, after(lanes, usage.Run), lanes.Run)
	}, nil
}
