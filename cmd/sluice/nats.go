package main

import (
	"context"
	"log/slog"

	"sluice/cmd/internal/run"
	embedded "sluice/pkg/embedded/nats"
)

type natsCmd struct {
	Data    string `default:"./data/nats" help:"Folder of the streams."`
	Listen  string `default:"127.0.0.1:4222" help:"Address for clients; beyond loopback only with --config and credentials in it."`
	Monitor string `help:"Address of the monitoring pages, loopback only; off when empty."`
	Config  string `type:"existingfile" help:"A plain nats.conf to use instead, cluster included."`
}

func (c *natsCmd) Run(ctx context.Context, log *slog.Logger) error {
	run.CollectOften()
	server, err := embedded.Start(embedded.Config{Data: c.Data, Listen: c.Listen, Monitor: c.Monitor, ConfigFile: c.Config}, log)
	if err != nil {
		return err
	}
	defer server.Shutdown()
	log.Info("NATS takes connections", "url", server.ClientURL(), "data", c.Data)
	<-ctx.Done()
	return nil
}
