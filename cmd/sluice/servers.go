package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/run"
	"sluice/pkg/dial"
	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/embedded/clickhouse/server"
	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/stream"
)

type natsCmd struct {
	Server  embedded.Config `embed:""`
	Secrets string          `help:"Folder with the passwords of the users api, ingester, operator and console, generated if missing; without it, on loopback, every client has all permissions."`
	Streams stream.Config   `embed:""`
}

func (c *natsCmd) Run(ctx context.Context, log *slog.Logger) error {
	run.CollectOften()
	cfg := c.Server
	if c.Secrets != "" {
		if cfg.ConfigFile != "" {
			return errors.New("--secrets and --config: give one of them; a nats.conf defines its own users")
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
	log.Info("NATS accepts connections", "url", server.ClientURL(), "data", cfg.Data)
	<-ctx.Done()
	return nil
}

type clickhouse struct{ server.Config }

func (c *clickhouse) Run(ctx context.Context, log *slog.Logger) error {
	if c.Secrets != "" {
		if c.Password != "" {
			return errors.New("--secrets and --password: give one of them")
		}
		// Only before the process confines itself: afterwards it cannot open the folder.
		if !library.Confined() {
			if err := run.MakeSecrets(c.Secrets, run.SecretAdmin, run.SecretIngester, run.SecretAnalyst, run.SecretModeller, run.SecretConsole); err != nil {
				return err
			}
		}
	}
	return run.UntilStopped(ctx, server.Serve(ctx, c.Config, log, func(native, http net.Addr) {
		attrs := []any{"native", native.String(), "data", c.Data}
		if http != nil {
			attrs = append(attrs, "http", "http://"+http.String())
		}
		log.Info("ClickHouse accepts connections", attrs...)
	}))
}

// natsUsers are the users of the embedded NATS server, with passwords from the folder.
func natsUsers(folder string) ([]embedded.User, error) {
	var all []embedded.User
	for _, u := range []struct {
		name, secret string
		may          stream.Permissions
	}{
		{"api", run.SecretNATSAPI, stream.APIPermissions()},
		{"ingester", run.SecretNATSIngester, stream.IngesterPermissions()},
		{"operator", run.SecretNATSOperator, stream.OperatorPermissions()},
		{"console", run.SecretNATSConsole, stream.ConsolePermissions()},
	} {
		password, err := run.ReadSecret(folder, u.secret)
		if err != nil {
			return nil, fmt.Errorf("the password of the NATS user %s: %w", u.name, err)
		}
		all = append(all, embedded.User{Name: u.name, Password: password, Publish: u.may.Publish, Subscribe: u.may.Subscribe})
	}
	return all, nil
}

func as(users []embedded.User, name string) dial.Config {
	c := dial.Config{Name: name}
	for _, u := range users {
		if u.Name == name {
			c.User, c.Password = u.Name, u.Password
		}
	}
	return c
}

// openAsOperator creates the streams before api and ingester open them: only the
// operator has the permission.
func openAsOperator(ctx context.Context, server *embedded.Server, users []embedded.User, s stream.Config, log *slog.Logger) error {
	reg := prometheus.NewRegistry() // not scraped
	nc, err := server.Connect(as(users, "operator").Options(log, dial.NewMetrics(reg))...)
	if err != nil {
		return err
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	_, err = stream.Open(ctx, nc, s, log, reg)
	return err
}
