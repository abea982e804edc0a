package console

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"sluice/pkg/accept"
	"sluice/pkg/flow"
	"sluice/pkg/option"
)

type Config struct {
	Listen string        `default:"127.0.0.1:8083" help:"Address for browsers. For other machines, use a TLS proxy and --https."`
	Secure bool          `name:"https" help:"Browsers connect through a TLS proxy: session cookies are sent over https only."`
	Every  time.Duration `default:"1s" help:"Refresh interval of live pages. Programs, NATS, and ClickHouse are queried once per interval for all browsers."`
	Shown

	Idle    time.Duration `kong:"-" default:"1h"`  // a session expires after this time without a request
	Session time.Duration `kong:"-" default:"12h"` // maximum age of a session
	Answer  time.Duration `kong:"-" default:"5s"`  // time limit to read the data of a page
	Work    time.Duration `kong:"-" default:"1m"`  // interval of counting open work
}

// Shown are the options that sluice up takes too.
type Shown struct {
	Stuck   time.Duration `name:"stuck-after" default:"1h" help:"An active instance without an event for this time is stuck: it needs attention and counts in sluice_stuck_instances."`
	Grafana string        `placeholder:"URL" help:"Address of Grafana with the dashboards of deploy/grafana, as browsers reach it. The overview links to it."`
	Operate string        `placeholder:"URL" help:"Address of Camunda Operate, as browsers reach it. Instances link to it."`
}

const minEvery = 50 * time.Millisecond // a shorter interval would keep looks running back to back

func (c Config) withDefaults() Config {
	option.Defaults(&c)
	return c
}

// Authenticator verifies a token and returns its rights. *auth.Authenticator is the real
// one. Its errors are flow.ErrTokenMissing, flow.ErrTokenInvalid and
// flow.ErrTokenUnverified.
type Authenticator interface {
	Authenticate(header string) (flow.Caller, error)
}

// Deps are the dependencies of the console. All are required unless a field allows nil.
type Deps struct {
	Auth      Authenticator
	Warehouse Warehouse
	Stream    Stream
	Letters   Letters
	Tokens    func() []Token // active static tokens
	Sources   SourceTokens   // nil: the console cannot change them
	Programs  []Program      // apis and ingesters
	Questions []Question     // offered on the query page; may be empty
	Metrics   prometheus.Registerer
}

// Server is the console. It is inert until Listen or Run.
type Server struct {
	cfg          Config
	log          *slog.Logger
	auth         Authenticator
	sessions     *sessions
	once         *onceCodes
	db           Warehouse
	letters      Letters
	questions    []Question
	tokens       func() []Token
	sourceTokens SourceTokens
	watch        *watch
	shared       sharedAnswers
	work         *openWork
	assets       *assets
	pages        pages
	handler      http.Handler
	turns        *rate.Limiter          // limits queries for new records, over all browsers
	recent       atomic.Pointer[string] // see recentParts

	listener *accept.Listener // nil until Listen; owned by Run from then on
}

// New parses the pages and returns a Server that is not yet listening.
func New(cfg Config, deps Deps, log *slog.Logger) (*Server, error) {
	cfg = cfg.withDefaults()
	if cfg.Every < minEvery {
		return nil, fmt.Errorf("--every is %s: set at least %s", cfg.Every, minEvery)
	}
	for flag, address := range map[string]string{"grafana": cfg.Grafana, "operate": cfg.Operate} {
		if address != "" && !strings.HasPrefix(address, "http://") && !strings.HasPrefix(address, "https://") {
			return nil, fmt.Errorf("--%s is %q: set an address that begins with http:// or https://", flag, address)
		}
	}
	files, err := loadAssets()
	if err != nil {
		return nil, fmt.Errorf("assets of the console: %w", err)
	}
	s := &Server{
		cfg: cfg, log: log, auth: deps.Auth, db: deps.Warehouse, letters: deps.Letters, tokens: deps.Tokens, sourceTokens: deps.Sources, questions: deps.Questions, assets: files,
		sessions: newSessions(cfg.Idle, cfg.Session), once: newOnceCodes(),
		watch: &watch{cfg: cfg, deps: deps}, work: newOpenWork(cfg, deps.Warehouse, deps.Metrics, log), turns: rate.NewLimiter(rate.Every(cfg.Every), 1),
	}
	if s.pages, err = s.loadPages(); err != nil {
		return nil, fmt.Errorf("pages of the console: %w", err)
	}
	s.handler = s.routes()
	return s, nil
}

var menu = []menuItem{
	{"Overview", "/"},
	{"Processes", "/processes"},
	{"Search", "/instances"},
	{"Records", "/records"},
	{"Query", "/query"},
	{"Dead letters", "/dead"},
	{"Sources", "/sources"},
}

// routes registers all pages. To add one: a line here, one in menu, a method of Server
// in its own file, and pages/<name>.html, which defines "main".
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /assets/", s.assets.serve)
	mux.HandleFunc("GET /sign-in", s.signInPage)
	mux.HandleFunc("POST /sign-in", s.signIn)
	mux.HandleFunc("POST /sign-in/once", s.signInOnce)
	mux.HandleFunc("POST /sign-out", s.signOut)

	mux.HandleFunc("GET /{$}", s.page(s.now))
	mux.HandleFunc("GET /dead", s.page(s.dead))
	mux.HandleFunc("GET /dead/{number}", s.page(s.letter))
	mux.HandleFunc("GET /dead/{number}/bytes", s.page(s.letterBytes))
	mux.HandleFunc("POST /dead/plan", s.act(s.deadPlan))
	mux.HandleFunc("POST /dead/replay", s.act(s.deadReplay))
	mux.HandleFunc("POST /dead/drop", s.act(s.deadDrop))
	mux.HandleFunc("GET /sources", s.page(s.sources))
	mux.HandleFunc("POST /sources", s.act(s.changeSource))
	mux.HandleFunc("GET /processes", s.page(s.processes))
	mux.HandleFunc("GET /process", s.page(s.process))
	mux.HandleFunc("GET /process/elements", s.page(s.elements))
	mux.HandleFunc("GET /definition", s.page(s.definition))
	for _, k := range kinds {
		mux.HandleFunc("GET "+k.Path, s.page(s.list(k)))
		mux.HandleFunc("GET "+k.Path+".csv", s.signedIn(s.listCSV(k)))
	}
	mux.HandleFunc("GET /instance", s.page(s.instance))
	mux.HandleFunc("GET /record", s.page(s.record))
	mux.HandleFunc("GET /records", s.page(s.tail))
	mux.HandleFunc("GET /records/new", s.page(s.tailed))
	mux.HandleFunc("GET /query", s.page(s.query))
	mux.HandleFunc("GET /query/views", s.page(s.views))
	mux.HandleFunc("POST /query", s.signedIn(s.runQuery)) // with a longer timeout
	mux.HandleFunc("POST /query.csv", s.signedIn(s.queryCSV))

	mux.HandleFunc("/", s.page(func(http.ResponseWriter, *http.Request, *session) error {
		return refuse(http.StatusNotFound, "Page not found.")
	}))
	return s.guard(mux)
}

// guard sets the security headers of every response and rejects cross-origin requests.
func (s *Server) guard(next http.Handler) http.Handler {
	next = http.NewCrossOriginProtection().Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "+
			"connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if s.cfg.Secure {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		next.ServeHTTP(w, r)
	})
}

// Handler serves requests without a listener.
func (s *Server) Handler() http.Handler { return s.handler }

// Listen binds the port, so that a port in use fails before anything else starts.
// Run calls it if it was not called.
func (s *Server) Listen() (net.Addr, error) {
	if s.listener == nil {
		listener, err := accept.Listen(accept.Config{Address: s.cfg.Listen}, s.log)
		if err != nil {
			return nil, fmt.Errorf("listen for browsers: %w", err)
		}
		s.listener = listener
	}
	return s.listener.Addr(), nil
}

// Check returns nil while browsers can connect. Call it after Listen.
func (s *Server) Check(ctx context.Context) error { return s.listener.Check(ctx) }

// Run serves browsers and counts open work until ctx ends. It then finishes the
// requests in flight and returns nil.
func (s *Server) Run(ctx context.Context) error {
	if _, err := s.Listen(); err != nil {
		return err
	}
	var counting sync.WaitGroup
	defer counting.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	counting.Go(func() { s.work.run(ctx) })
	srv := &http.Server{
		Handler:           s.handler,
		ConnState:         s.listener.State,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10, // a URL may contain a statement
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		soon, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if srv.Shutdown(soon) != nil {
			_ = srv.Close() // cuts off statements that take longer
		}
	})
	if err := srv.Serve(s.listener); stop() { // Serve ended without Shutdown
		return fmt.Errorf("serve browsers: %w", err)
	}
	<-stopped
	return nil
}
