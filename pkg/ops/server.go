package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"sluice/pkg/accept"
)

// Server answers operators. It is inert until Listen or Run.
type Server struct {
	cfg      Config
	log      *slog.Logger
	reg      *prometheus.Registry
	health   *health
	mux      *http.ServeMux
	listener *accept.Listener // nil until Listen; owned by Run from then on
	profiles net.Listener     // the same; nil for ever when profiles are off
}

// New prepares a Server with a registry of its own.
func New(cfg Config, log *slog.Logger) *Server {
	s := &Server{cfg: cfg.withDefaults(), log: log, reg: newRegistry(), health: &health{epoch: time.Now()}}
	s.reg.MustRegister(newReady(s.health, s.cfg.CheckTimeout), newBuild(s.cfg.Version, s.cfg.Commit))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metricsHandler(s.reg))
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	s.mux = mux
	return s
}

// Registry is where the services of the process register their metrics.
func (s *Server) Registry() *prometheus.Registry { return s.reg }

// Tracer is what a service of the process makes its spans with, by its package; nil
// where nothing is traced.
func (s *Server) Tracer(name string) trace.Tracer { return s.cfg.Tracing.Tracer(name) }

// AddCheck adds something the process needs to be ready. run returns nil when
// it is there, else an error whose text is shown to operators; it may be
// called at any time, by several callers at once, and should heed its context.
func (s *Server) AddCheck(name string, run func(context.Context) error) {
	s.health.addCheck(name, run)
}

// List adds a page that shows a list as JSON, such as clients that were rejected. Its
// path begins with a slash. Call it before Run.
func (s *Server) List(path string, list func() any) {
	s.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { answer(w, true, list()) })
}

// Starting keeps the process from being ready until the function it returns is
// called; reason says until when that is. A service asks for it before operators
// are served, so that they are never told of a readiness that was not checked.
func (s *Server) Starting(reason string) (started func()) {
	var done atomic.Bool
	s.health.addCheck("start", func(context.Context) error {
		if done.Load() {
			return nil
		}
		return errors.New(reason)
	})
	return func() { done.Store(true) }
}

// Heartbeat adds a loop that is expected to beat at least once per stall. The
// process counts as dead when it does not. A name that was used before is
// replaced.
func (s *Server) Heartbeat(name string, stall time.Duration) *Heartbeat {
	return s.health.heartbeat(name, stall)
}

// Handler answers the routes without a listener.
func (s *Server) Handler() http.Handler { return s.mux }

// Listen takes the ports, so that a port in use is known before anything else
// starts. Run calls it unless it was called.
func (s *Server) Listen() (net.Addr, error) {
	if s.listener == nil {
		ln, err := accept.Listen(accept.Config{Address: s.cfg.Listen}, s.log)
		if err != nil {
			return nil, fmt.Errorf("listen for operators: %w", err)
		}
		if s.cfg.Profiles != "" {
			if s.profiles, err = listenProfiles(s.cfg.Profiles); err != nil {
				return nil, errors.Join(err, ln.Close())
			}
		}
		s.listener = ln
	}
	return s.listener.Addr(), nil
}

// ProfilesAddr is where profiles are served once Listen was called; nil when
// they are off.
func (s *Server) ProfilesAddr() net.Addr {
	if s.profiles == nil {
		return nil
	}
	return s.profiles.Addr()
}

// Run serves until ctx ends and returns nil then. Answers that are still being
// written, such as a profile, are cut off: operators come last at a shutdown,
// not longest.
func (s *Server) Run(ctx context.Context) error {
	if _, err := s.Listen(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 2)
	serving := 1
	go func() { ended <- s.serve(ctx, s.listener, s.listener.State, s.mux) }()
	if s.profiles != nil {
		serving++
		go func() { ended <- s.serve(ctx, s.profiles, nil, profiles()) }()
	}
	var errs []error
	for range serving {
		errs = append(errs, <-ended)
		cancel() // one that ends by itself ends the other
	}
	return errors.Join(errs...)
}

func (s *Server) serve(ctx context.Context, ln net.Listener, state func(net.Conn, http.ConnState), handler http.Handler) error {
	srv := &http.Server{
		Handler:           handler,
		ConnState:         state,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve operators: %w", err)
	}
	return nil
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	stalled := s.health.stalled()
	answer(w, len(stalled) == 0, struct {
		Alive   bool      `json:"alive"`
		Stalled []finding `json:"stalled"`
	}{len(stalled) == 0, stalled})
}

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	missing := s.health.missing(r.Context(), s.cfg.CheckTimeout)
	answer(w, len(missing) == 0, struct {
		Ready   bool      `json:"ready"`
		Missing []finding `json:"missing"`
	}{len(missing) == 0, missing})
}

func answer(w http.ResponseWriter, ok bool, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(body) // the caller is gone when this fails
}
