package run

import (
	"context"
	"log/slog"
	"time"

	"sluice/pkg/dial"
	"sluice/pkg/ops"
	"sluice/pkg/stream"
)

// alone is a part of the pipeline as a program of its own.
type alone struct {
	name        string // of its connection to NATS
	ops         string // where operators reach it
	profiles    string // where they can take profiles, if anywhere
	memory      int64  // bytes it may use
	healthcheck bool   // only ask the one that runs
	nats        NATS
	silence     time.Duration // how long NATS may say nothing; 0 for the default
	streams     Streams
}

// run runs the part until ctx ends; operators can reach it until its end.
func (a alone) run(ctx context.Context, log *slog.Logger, part func(*stream.Stream, *ops.Server, *slog.Logger) (Part, error)) error {
	if a.healthcheck {
		return askReady(ctx, a.ops)
	}
	if err := BoundMemory(a.memory); err != nil {
		return err
	}
	tracing, closing, err := NewTracing(ctx, a.name, log)
	if err != nil {
		return err
	}
	defer closing()
	log = tracing.Logger(log)
	operators := Operators(ops.Config{Listen: a.ops, Profiles: a.profiles, Tracing: tracing}, log)
	if _, err := operators.Listen(); err != nil {
		return err
	}
	connection, err := a.nats.Connection(a.name)
	if err != nil {
		return err
	}
	connection.Silence = a.silence
	nc, err := dial.Connect(connection, log, operators.Registry())
	if err != nil {
		return err
	}
	defer nc.Close()
	kept := a.streams.Config()
	kept.Tracer = operators.Tracer("stream")
	lanes, err := stream.New(nc, kept, log, operators.Registry())
	if err != nil {
		return err
	}
	runs, err := part(lanes, operators, log)
	if err != nil {
		return err
	}
	return InOrder(ctx, runs, operators.Run)
}

// Operators are served what cfg says, of this version.
func Operators(cfg ops.Config, log *slog.Logger) *ops.Server {
	cfg.Version, cfg.Commit = Version()
	return ops.New(cfg, log)
}

// NewTracing traces what a program does, if the environment asks for it. closing sends
// the last spans; that it cannot is no failure of the program.
func NewTracing(ctx context.Context, program string, log *slog.Logger) (tracing *ops.Tracing, closing func(), err error) {
	v, _ := Version()
	tracing, err = ops.NewTracing(ctx, "sluice-"+program, v, log)
	return tracing, func() {
		if err := tracing.Close(); err != nil {
			log.Warn("the last spans were not sent", "error", err)
		}
	}, err
}
