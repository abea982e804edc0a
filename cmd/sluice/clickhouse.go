package main

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"sluice/cmd/internal/run"
	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/embedded/clickhouse/server"
)

type clickhouse struct{ server.Config }

func (c *clickhouse) Run(ctx context.Context, log *slog.Logger) error {
	if c.Secrets != "" {
		if c.Password != "" {
			return errors.New("--secrets and --password: give one of them")
		}
		// Once: confined, the process cannot see the folder any more.
		if !library.Confined() {
			if err := run.MakeSecrets(c.Secrets, run.SecretAdmin, run.SecretIngester, run.SecretAnalyst); err != nil {
				return err
			}
		}
	}
	return run.UntilStopped(ctx, server.Serve(ctx, c.Config, log, func(native, http net.Addr) {
		attrs := []any{"native", native.String(), "data", c.Data}
		if http != nil {
			attrs = append(attrs, "http", "http://"+http.String())
		}
		log.Info("ClickHouse takes connections", attrs...)
	}))
}
