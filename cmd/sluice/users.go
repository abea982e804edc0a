package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/run"
	"sluice/pkg/dial"
	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/stream"
)

// natsUsers are the users of the embedded NATS server, with the passwords of a
// secrets folder.
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

// as is the connection of one of these users.
func as(users []embedded.User, name string) dial.Config {
	c := dial.Config{Name: name}
	for _, u := range users {
		if u.Name == name {
			c.User, c.Password = u.Name, u.Password
		}
	}
	return c
}

// openAsOperator makes the streams, as only the operator may, before api and
// ingester look for them.
func openAsOperator(ctx context.Context, server *embedded.Server, users []embedded.User, s stream.Config, log *slog.Logger) error {
	reg := prometheus.NewRegistry() // it is not read
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
