package main

import (
	"context"
	"errors"
	"log/slog"

	"sluice/cmd/internal/run"
	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/stream"
)

type natsCmd struct {
	Data    string        `default:"./data/nats" help:"Folder of the streams."`
	Listen  string        `default:"127.0.0.1:4222" help:"Address for clients; beyond loopback only with --config and credentials in it."`
	Monitor string        `help:"Address of the monitoring pages, loopback only; off when empty."`
	Secrets string        `help:"Folder with the passwords of the users api, ingester, operator and console, made if missing; without it, on loopback, every client may do everything."`
	Config  string        `type:"existingfile" help:"A plain nats.conf to use instead, cluster included."`
	Streams stream.Config `embed:""`
}

func (c *natsCmd) Run(ctx context.Context, log *slog.Logger) error {
	run.CollectOften()
	cfg := embedded.Config{Data: c.Data, Listen: c.Listen, Monitor: c.Monitor, ConfigFile: c.Config}
	if c.Secrets != "" {
		if c.Config != "" {
			return errors.New("--secrets and --config: a nats.conf names its users itself")
		}
		if err := run.MakeSecrets(c.Secrets, run.SecretNATSAPI, run.SecretNATSIngester, run.SecretNATSOperator, run.SecretNATSConsole); err != nil {
			return err
		}
		var err error
		if cfg.Users, err = natsUsers(c.Secrets); err != nil {
			return err
		}
	}
	server, err := embedded.Start(cfg, log)
	if err != nil {
		return err
	}
	defer server.Shutdown()
	if c.Secrets != "" {
		if err := openAsOperator(ctx, server, cfg.Users, c.Streams, log); err != nil {
			return run.UntilStopped(ctx, err)
		}
	}
	log.Info("NATS takes connections", "url", server.ClientURL(), "data", c.Data)
	<-ctx.Done()
	return nil
}
