// Package natstest starts real NATS servers for tests.
package natstest

import (
	"log/slog"
	"net"
	"net/url"
	"testing"

	"github.com/nats-io/nats.go"

	embedded "sluice/pkg/embedded/nats"
)

// Server is a NATS server on a free loopback port, with its data in the test's temporary
// folder. It stops with the test.
type Server struct {
	URL  string // nats://127.0.0.1:port, the same after Restart
	Data string // folder of its files
	t    testing.TB
	cfg  embedded.Config
	srv  *embedded.Server
}

// Start starts a server.
func Start(t testing.TB) *Server {
	t.Helper()
	return StartWith(t, embedded.Config{})
}

// StartWith is Start with a Config; empty data folder and address are set.
func StartWith(t testing.TB, cfg embedded.Config) *Server {
	t.Helper()
	if cfg.Data == "" {
		cfg.Data = t.TempDir()
	}
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	s := &Server{t: t, cfg: cfg, Data: cfg.Data}
	s.Restart()
	s.URL = s.srv.ClientURL()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatalf("parse %s: %v", s.URL, err)
	}
	s.cfg.Listen = net.JoinHostPort(u.Hostname(), u.Port())
	t.Cleanup(s.Stop)
	return s
}

// Stop shuts the server down; its data stays.
func (s *Server) Stop() {
	if s.srv != nil {
		s.srv.Shutdown()
		s.srv = nil
	}
}

// Restart restarts the server on the same data and port.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	srv, err := embedded.Start(s.cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		s.t.Fatalf("start NATS: %v", err)
	}
	s.srv = srv
}

// Embedded is the running server.
func (s *Server) Embedded() *embedded.Server { return s.srv }

// Connect connects over TCP and reconnects without limit; the connection closes with the test.
func (s *Server) Connect(opts ...nats.Option) *nats.Conn {
	s.t.Helper()
	opts = append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectBufSize(-1)}, opts...)
	nc, err := nats.Connect(s.URL, opts...)
	if err != nil {
		s.t.Fatalf("connect to %s: %v", s.URL, err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}
