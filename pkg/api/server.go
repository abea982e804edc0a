package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"sluice/pkg/accept"
	"sluice/pkg/change"
	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// Authenticator authenticates tokens. *auth.Authenticator is the real one. Its errors are
// flow.ErrTokenMissing, flow.ErrTokenInvalid, and flow.ErrTokenUnverified; clients see their
// texts.
type Authenticator interface {
	Authenticate(header string) (flow.Caller, error) // with an error: at most the subject of an expired token
	Configured(subject string) bool                  // whether the subject has a static token
}

// Deps are the dependencies of the api. All are required.
type Deps struct {
	Auth     Authenticator
	Stream   Stream
	Progress Progress
	Changes  Changes
	Last     Last
	State    State
	Usage    Usage
	Secrets  *change.Secrets // replaces secrets in changes
	Dead     DeadLetters     // of invalid records
}

// Server is the HTTP API. It is inert until Listen or Run.
type Server struct {
	cfg       Config
	log       *slog.Logger
	metrics   *metrics
	limits    record.Limits
	auth      Authenticator
	stream    Stream
	changes   Changes
	last      Last
	state     State
	usage     Usage
	secrets   *change.Secrets
	dead      DeadLetters
	slots     chan struct{} // of concurrently parsed documents
	bodies    *bodies
	rates     *rates
	rejected  *rejected
	progress  Progress
	draining  context.Context            // ends with Run: no request waits afterwards
	drained   context.CancelFunc         // ends it
	documents func() (*documents, error) // made on first use
	engine    *gin.Engine
	elastic   *gin.Engine // of the second port
	tls       *tls.Config // nil for plain HTTP

	ports []port // none until Listen; then owned by Run
}

// port is a listener and its handler.
type port struct {
	listener *accept.Listener
	handler  http.Handler
}

// New makes a Server and reads its certificate.
func New(cfg Config, deps Deps, log *slog.Logger, reg prometheus.Registerer) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	limits, err := cfg.limits()
	if err != nil {
		return nil, err
	}
	m := newMetrics(reg)
	s := &Server{
		cfg: cfg, log: log, metrics: m, limits: limits,
		auth: deps.Auth, stream: deps.Stream, progress: deps.Progress,
		changes: deps.Changes, last: deps.Last, state: deps.State, usage: deps.Usage, secrets: deps.Secrets, dead: deps.Dead,
		slots:     make(chan struct{}, cfg.Documents),
		documents: sync.OnceValues(func() (*documents, error) { return newDocuments(cfg.Version, cfg.Commit) }),
		bodies:    newBodies(cfg, m), rates: newRates(cfg.Rate), rejected: newRejected(log, m, deps.Auth), engine: newEngine(), elastic: newEngine(),
	}
	s.draining, s.drained = context.WithCancel(context.Background())
	m.watch(reg, s.bodies.budget)
	if cfg.TLSCert != "" {
		cert, err := loadCertificate(cfg.TLSCert, cfg.TLSKey, log)
		if err != nil {
			return nil, err
		}
		s.tls = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: cert.get}
	}
	s.routes()
	s.elasticRoutes()
	return s, nil
}

// Handler is the handler of the routes, for use without Listen.
func (s *Server) Handler() http.Handler { return s.engine }

// ElasticHandler is the handler of the second port, for use without Listen.
func (s *Server) ElasticHandler() http.Handler { return s.elastic }

// Listen opens the ports, so that a port in use is reported before anything else starts. Run
// calls it if needed.
func (s *Server) Listen() (net.Addr, error) {
	if len(s.ports) > 0 {
		return s.ports[0].listener.Addr(), nil
	}
	cfg := accept.Config{Address: s.cfg.Listen, Max: s.cfg.Connections, PerAddress: s.cfg.AddressConnections,
		Closed: s.metrics.connectionsClosed.Inc, Rejected: s.metrics.connectionsRejected.Inc}
	clients, err := accept.Listen(cfg, s.log)
	if err != nil {
		return nil, fmt.Errorf("listen for clients: %w", err)
	}
	ports := []port{{clients, s.engine}}
	if s.cfg.Elastic != "" {
		cfg.Address = s.cfg.Elastic
		exporters, err := accept.Listen(cfg, s.log)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen for clients of Elasticsearch: %w", err), clients.Close())
		}
		ports = append(ports, port{exporters, s.elastic})
	}
	s.ports = ports
	return clients.Addr(), nil
}

// Check is nil while every port accepts connections, after Listen.
func (s *Server) Check(ctx context.Context) (err error) {
	for _, p := range s.ports {
		err = errors.Join(err, p.listener.Check(ctx))
	}
	return err
}

// Run serves until ctx ends, then accepts no more connections, waits for requests in flight,
// at most Config.Drain, and returns nil. An error means that requests were aborted, or that
// it could not serve.
func (s *Server) Run(ctx context.Context) error {
	if _, err := s.Listen(); err != nil {
		return err
	}
	all, ctx := errgroup.WithContext(ctx)
	for _, p := range s.ports {
		all.Go(func() error { return s.answer(ctx, p) })
	}
	return all.Wait()
}

// answer serves one port until ctx ends.
func (s *Server) answer(ctx context.Context, p port) error {
	srv := s.httpServer(p)
	drained := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { drained <- s.drain(srv) })
	err := s.serve(srv, p.listener)
	if stop() || !errors.Is(err, http.ErrServerClosed) {
		_ = srv.Close()
		return fmt.Errorf("serve clients: %w", err)
	}
	return <-drained
}

func (s *Server) serve(srv *http.Server, listener net.Listener) error {
	if s.tls != nil {
		return srv.ServeTLS(listener, "", "")
	}
	return srv.Serve(listener)
}

// drain waits for requests in flight. Their contexts stay valid.
func (s *Server) drain(srv *http.Server) error {
	s.drained()
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Drain)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		_ = srv.Close()
		return fmt.Errorf("aborted requests still in flight after %s", s.cfg.Drain)
	}
	return nil
}

func (s *Server) httpServer(p port) *http.Server {
	return &http.Server{
		Handler:           p.handler,
		ConnState:         p.listener.State,
		ConnContext:       accept.WithConnection,
		TLSConfig:         s.tls,
		ReadHeaderTimeout: s.cfg.HeaderTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		// A backstop: bodies have deadlines of their own.
		ReadTimeout: s.cfg.HeaderTimeout + s.cfg.InFlightWait*2 + s.cfg.BodyTimeout,
		// From the end of the header on: the longest request, plus time for the client to
		// read its answer.
		WriteTimeout:   s.cfg.longest() + 15*time.Second,
		MaxHeaderBytes: 16 << 10,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 128,
			// Bytes of a connection that are not read yet.
			MaxReceiveBufferPerConnection: 1 << 20,
			MaxReceiveBufferPerStream:     256 << 10,
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// certificate is the TLS certificate in force. Its files are checked at most once a second,
// when a client connects; the last valid pair stays in force while they are invalid.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	read    time.Time
	broken  string // the last error, so that it is logged once
}

func loadCertificate(certFile, keyFile string, log *slog.Logger) (*certificate, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("TLS certificate: %w", err)
	}
	return &certificate{certFile: certFile, keyFile: keyFile, log: log, current: &pair, read: time.Now()}, nil
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.read) < time.Second {
		return c.current, nil
	}
	c.read = time.Now()
	switch pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile); {
	case err != nil && err.Error() != c.broken:
		c.broken = err.Error()
		c.log.Error("TLS certificate is invalid; the previous one stays in force", "error", err)
	case err == nil:
		if c.broken = ""; !bytes.Equal(pair.Certificate[0], c.current.Certificate[0]) {
			c.log.Info("TLS certificate reloaded", "path", c.certFile)
		}
		c.current = &pair
	}
	return c.current, nil
}
