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

// NATS says how a program reaches NATS.
type NATS struct {
	NATS             string `name:"nats" default:"nats://127.0.0.1:4222" help:"NATS servers, comma-separated URLs."`
	NATSUser         string `name:"nats-user" help:"NATS user, with --nats-password-file: then neither stands in --nats."`
	NATSPasswordFile string `name:"nats-password-file" type:"existingfile" help:"File of its password, one line; read for every connection that is made, as are the files below."`

	NATSCreds string `name:"nats-creds" type:"existingfile" help:"File of the NATS user's credentials."`
	NATSCA    string `name:"nats-ca" type:"existingfile" help:"File of PEM certificates that sign the servers'; the system's when empty."`
	NATSCert  string `name:"nats-cert" type:"existingfile" help:"File of this client's PEM certificate."`
	NATSKey   string `name:"nats-key" type:"existingfile" help:"File of its private key."`

	user, password string // of an operator's command, from its secrets
}

// Connection describes the connection of one program, by name.
func (n NATS) Connection(name string) (dial.Config, error) {
	c := dial.Config{URL: n.NATS, Name: name, Credentials: n.NATSCreds, CA: n.NATSCA, Cert: n.NATSCert, Key: n.NATSKey, User: n.user, Password: n.password}
	if n.NATSUser == "" && n.NATSPasswordFile == "" {
		return c, nil
	}
	if n.NATSUser == "" || n.NATSPasswordFile == "" || strings.Contains(n.NATS, "@") {
		return c, errors.New("--nats-user and --nats-password-file are given together, and then no user in --nats")
	}
	if _, err := dial.Line(n.NATSPasswordFile); err != nil {
		return c, fmt.Errorf("--nats-password-file: %w", err)
	}
	c.User, c.PasswordFile = n.NATSUser, n.NATSPasswordFile
	return c, nil
}

// Streams says how the streams are kept, once they are made.
type Streams struct {
	StreamMaxBytes  int64         `default:"0" help:"Disk budget of a lane in bytes; 0 is 4 GiB for a new lane and leaves an old one as it is."`
	DeadMaxBytes    int64         `default:"0" help:"Disk budget of dead letters in bytes; 0 is 256 MiB at first and leaves it as it is later. When it is used up, a lane halts that has to set a record aside."`
	StateMaxBytes   int64         `default:"0" help:"Disk budget of users and dataset fields in bytes; 0 is 256 MiB at first and leaves it as it is later. Changes are refused with 429 when nine tenths are used."`
	StreamReplicas  int           `default:"0" help:"Copies of every stream: 1, 3 or 5; 0 is 1 for a new stream and leaves an old one as it is."`
	DuplicateWindow time.Duration `default:"0" help:"How long a lane recognises a message that is sent to it again; 0 is 2 min for a first lane and leaves it as it is later."`
	RepeatWindow    time.Duration `default:"10m" help:"How long a repeated request is recognised whose records have no identity of their own, in stream time; the same for every program."`
	NATSMonitors    []string      `name:"nats-monitors" help:"Monitoring URLs of the NATS servers, comma-separated: start only if they sync every message to disk."`
	AllowLazySync   bool          `help:"Start although a server of --nats-monitors does not sync every message: acknowledged records can be lost with the power."`
}

// Config is what pkg/stream calls it.
func (s Streams) Config() stream.Config {
	return stream.Config{
		MaxBytes: s.StreamMaxBytes, DeadMaxBytes: s.DeadMaxBytes, StateMaxBytes: s.StateMaxBytes, Replicas: s.StreamReplicas,
		DuplicateWindow: s.DuplicateWindow, RepeatWindow: s.RepeatWindow,
		Monitors: s.NATSMonitors, AllowLazySync: s.AllowLazySync,
	}
}

// askReady asks a program of this machine whether it is ready: the health
// check of a container without a shell.
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

// WithNATS connects as the operator, for a command that ends by itself. reg has the
// metrics of the connection, which are not read.
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

// WithStream opens the streams for a command that ends by itself.
func WithStream(ctx context.Context, o Operator, n NATS, s Streams, log *slog.Logger, do func(*stream.Stream) error) error {
	return WithNATS(ctx, o, n, log, func(nc *nats.Conn, reg prometheus.Registerer) error {
		opening, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		opened, err := stream.Open(opening, nc, s.Config(), log, reg)
		if err != nil {
			return fmt.Errorf("%s: %w", dial.Redact(n.NATS), err)
		}
		return do(opened)
	})
}
