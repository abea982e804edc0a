package nats

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"sluice/pkg/option"
)

// Server is a running NATS server.
type Server struct {
	server *server.Server
	lock   *os.File // held until the server has closed its files
	log    *slog.Logger
	user   string
	pass   string

	quit   chan struct{} // closed by Shutdown
	healed chan struct{} // closed when heal returns; nil if it never ran
	once   sync.Once
}

// Start starts the server and returns once it accepts connections, with its streams
// recovered. Errors are for operators: a port in use, a folder in use or not writable, an
// invalid configuration.
func Start(cfg Config, log *slog.Logger) (*Server, error) {
	option.Defaults(&cfg)
	log = log.With("component", "nats")
	opts, err := cfg.options(log)
	if err != nil {
		return nil, err
	}
	if opts.StoreDir == "" {
		return nil, errors.New("NATS data folder is not set")
	}
	if err := os.MkdirAll(opts.StoreDir, 0o700); err != nil {
		return nil, fmt.Errorf("make NATS data folder: %w", err)
	}
	held, err := lock(opts.StoreDir)
	if err != nil {
		return nil, err
	}
	s := &Server{lock: held, log: log, user: opts.Username, pass: opts.Password, quit: make(chan struct{})}
	if err := s.start(cfg, opts); err != nil {
		s.Shutdown()
		return nil, err
	}
	if !s.server.JetStreamIsClustered() {
		s.healed = make(chan struct{})
		go s.heal(opts) // until Shutdown
	}
	return s, nil
}

func (s *Server) start(cfg Config, opts *server.Options) error {
	// The server opens its store before its port. Check the port first, so that a second
	// start by mistake touches nothing.
	if !opts.DontListen && opts.Port > 0 {
		if err := portFree(net.JoinHostPort(opts.Host, strconv.Itoa(opts.Port))); err != nil {
			return err
		}
	}
	err := cannotJoin(opts)
	if err == nil {
		err = finishMeta(opts.StoreDir, s.log)
	}
	if err != nil {
		return err
	}
	if s.server, err = server.NewServer(opts); err != nil {
		return fmt.Errorf("configure NATS server: %w", err)
	}
	fatal := make(chan error, 1)
	s.server.SetLoggerV2(&logger{log: s.log, fatal: fatal}, opts.Debug, opts.Trace, false)
	go s.server.Start() // returns once everything runs; ended by Shutdown

	// The server does not signal readiness: poll.
	deadline := time.Now().Add(cfg.Patience)
	for {
		select {
		case err := <-fatal:
			return fmt.Errorf("start NATS server: %w", err)
		default:
		}
		if s.server.ReadyForConnections(50 * time.Millisecond) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the NATS server is not ready after %v", cfg.Patience)
		}
	}
}

func portFree(address string) error {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("NATS cannot listen on %s: the address is in use by another process", address)
	}
	if err != nil {
		return fmt.Errorf("NATS cannot listen: %w", err)
	}
	return l.Close()
}

// Connect connects in process, with User and Password of the Config; for one of its Users
// set opts.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	inner := []nats.Option{nats.InProcessServer(s.server)}
	if s.user != "" {
		inner = append(inner, nats.UserInfo(s.user, s.pass))
	}
	return nats.Connect("", append(inner, opts...)...)
}

// ClientURL is the URL for TCP clients, without credentials; empty if in process only.
func (s *Server) ClientURL() string {
	if s.server.Addr() == nil {
		return ""
	}
	return s.server.ClientURL()
}

// MonitorURL is the URL of the monitoring pages; empty if off.
func (s *Server) MonitorURL() string {
	if a := s.server.MonitorAddr(); a != nil {
		return "http://" + a.String()
	}
	return ""
}

// Healthy fails if a stream or the store is unhealthy, such as after a failed write.
func (s *Server) Healthy() error {
	if h := s.server.Healthz(&server.HealthzOptions{}); h.Status != "ok" {
		return fmt.Errorf("NATS server: %s: %s", h.Status, h.Error)
	}
	return nil
}

// Shutdown stops the server and waits until its files are closed. Close client connections
// first, or they try to reconnect. Acknowledged messages are on disk even without it.
func (s *Server) Shutdown() { s.once.Do(s.shutdown) }

func (s *Server) shutdown() {
	close(s.quit)
	if s.healed != nil {
		<-s.healed // it may be restarting JetStream
	}
	if s.server != nil {
		s.server.Shutdown()
		s.server.WaitForShutdown()
	}
	if err := s.lock.Close(); err != nil {
		s.log.Warn("unlock NATS data folder", "error", err)
	}
}
