package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/dial"
	"sluice/pkg/stream"
)

// NATS has the options of the connection to NATS.
type NATS struct{ dial.Config }

// Connection is the configuration for the connection of the named program.
func (n NATS) Connection(name string) (dial.Config, error) {
	c := n.Config
	c.Name = name
	if c.Password != "" || c.User == "" && c.PasswordFile == "" { // commands have a password from --data
		return c, nil
	}
	if c.User == "" || c.PasswordFile == "" || strings.Contains(c.URL, "@") {
		return c, errors.New("--nats-user and --nats-password-file: give both, and no user in --nats")
	}
	if _, err := dial.Line(c.PasswordFile); err != nil {
		return c, fmt.Errorf("--nats-password-file: %w", err)
	}
	return c, nil
}

// askReady is the health check of a container without a shell.
func askReady(ctx context.Context, ops string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ops+"/readyz", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready: %s", res.Status)
	}
	return nil
}

// WithNATS connects as the operator while do runs. reg has the metrics of the connection;
// it is not scraped.
func WithNATS(ctx context.Context, o Operator, n NATS, log *slog.Logger, do func(*nats.Conn, prometheus.Registerer) error) error {
	n, err := o.LogIn(n)
	if err != nil {
		return err
	}
	connection, err := n.Connection("operator")
	if err != nil {
		return err
	}
	reg := prometheus.NewRegistry()
	nc, err := dial.Connect(connection, log, reg)
	if err != nil {
		return err
	}
	defer nc.Close()
	return do(nc, reg)
}

// WithStream opens the streams as the operator while do runs.
func WithStream(ctx context.Context, o Operator, n NATS, s stream.Config, log *slog.Logger, do func(*stream.Stream) error) error {
	return WithNATS(ctx, o, n, log, func(nc *nats.Conn, reg prometheus.Registerer) error {
		opening, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		opened, err := stream.Open(opening, nc, s, log, reg)
		if err != nil {
			return fmt.Errorf("%s: %w", dial.Redact(n.URL), err)
		}
		return do(opened)
	})
}
