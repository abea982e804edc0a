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

	"sluice/pkg/accept"
)

// Server answers operators. It is inert until Listen or Run.
type Server struct {
	cfg      Config
	log      *slog.Logger
	reg      *prometheus.Registry
	health   *health
	mux      *http.ServeMux
	listener *accept.Listener // nil until Listen; then owned by Run
	profiles net.Listener     // likewise; nil if profiles are off
}

// New makes a Server with its own registry.
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

// Registry is the registry of the process.
func (s *Server) Registry() *prometheus.Registry { return s.reg }

// AddCheck adds a precondition of readiness. run returns nil or an error whose text
// operators see; it may be called concurrently and should respect its context.
func (s *Server) AddCheck(name string, run func(context.Context) error) {
	s.health.addCheck(name, run)
}

// List adds a page that serves a list as JSON, such as rejected clients. path begins with a
// slash. Call it before Run.
func (s *Server) List(path string, list func() any) {
	s.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { answer(w, true, list()) })
}

// Starting keeps the process unready, for this reason, until started is called. Call it
// before Run, so that readiness is never reported unchecked.
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

// Heartbeat adds a loop that must beat at least once per stall, else the process counts as
// dead. It replaces one of the same name.
func (s *Server) Heartbeat(name string, stall time.Duration) *Heartbeat {
	return s.health.heartbeat(name, stall)
}

// Handler is the handler of all routes, for use without Listen.
func (s *Server) Handler() http.Handler { return s.mux }

// Listen opens the ports, so that a port in use is reported before anything else starts.
// Run calls it if needed.
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

// ProfilesAddr is the address of profiles after Listen; nil if they are off.
func (s *Server) ProfilesAddr() net.Addr {
	if s.profiles == nil {
		return nil
	}
	return s.profiles.Addr()
}

// Run serves until ctx ends and then returns nil. Responses in progress, such as a profile,
// are cut off.
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
		cancel() // if one ends, the other does
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
	_ = json.NewEncoder(w).Encode(body) // fails only if the client is gone
}
