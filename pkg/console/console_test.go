package console_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/auth"
	"sluice/pkg/console"
	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/flow"
	"sluice/pkg/ops"
	"sluice/pkg/programtest"
)

func TestMain(m *testing.M) {
	if os.Getenv("CLICKHOUSETEST_SERVE") != "" {
		clickhousetest.Main(m) // this process is the engine
		return
	}
	programtest.Main(m)
}

// away is an unreachable ClickHouse.
type away struct{}

func (away) Query(context.Context, string, ...any) (driver.Rows, error) {
	return nil, errors.New("connection refused")
}

// still is a stream of one idle lane.
type still struct{ standing console.Standing }

func (s still) Standing(context.Context) (console.Standing, error) { return s.standing, nil }

var oneLane = console.Standing{Lanes: []console.Lane{{
	Number: 0, Stream: "FLOW_0", Last: 7, Bytes: 1 << 20, MaxBytes: 4 << 30, Backlog: 2, BacklogBytes: 300,
	Position: flow.LaneState{Owner: "ingester-1", Incarnations: []flow.Incarnation{{ID: 1795323828695, First: 1}}, Totals: flow.Totals{Read: 12_000, Stored: 11_990, Deduplicated: 10}},
}}}

// site is a console and a browser without a session.
type site struct {
	t      *testing.T
	server *console.Server
	url    string
	client *http.Client
	tokens string // file
}

const (
	reader  = "sluice_reader"
	admin   = "sluice_admin"
	poster  = "sluice_poster"
	tenants = "sluice_tenants"
)

// newSite serves a console whose ClickHouse is away, unless change replaces it.
func newSite(t *testing.T, change func(*console.Config, *console.Deps)) *site {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	tokens := filepath.Join(t.TempDir(), "tokens.yaml")
	writeTokens(t, tokens, reader, admin, poster, tenants)
	authenticator, err := auth.New(auth.Config{Tokens: tokens}, log, prometheus.NewRegistry())
	fatal(t, err)
	operators := ops.New(ops.Config{}, log)
	programs := httptest.NewServer(operators.Handler())
	t.Cleanup(programs.Close)
	cfg := console.Config{Listen: "127.0.0.1:0", Every: 50 * time.Millisecond}
	deps := console.Deps{Auth: authenticator, Warehouse: away{}, Stream: still{oneLane}, Tokens: func() []console.Token { return nil }, Programs: []console.Program{console.NewProgram(programs.URL)}}
	if change != nil {
		change(&cfg, &deps)
	}
	server, err := console.New(cfg, deps, log)
	fatal(t, err)
	address, err := server.Listen()
	fatal(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- server.Run(ctx) }()
	go func() { ended <- authenticator.Run(ctx) }()
	s := &site{t: t, server: server, url: "http://" + address.String(), client: newBrowser(), tokens: tokens}
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Errorf("run: %v", err)
			}
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

// newBrowser keeps cookies and does not follow redirects.
func newBrowser() *http.Client {
	jar, _ := cookiejar.New(nil) // never fails
	return &http.Client{Jar: jar, Transport: &http.Transport{}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func writeTokens(t *testing.T, file string, tokens ...string) {
	t.Helper()
	all := map[string]auth.Entry{
		reader:  {Subject: "ann", Scopes: []flow.Scope{flow.ScopeRead}},
		admin:   {Subject: "root", Scopes: []flow.Scope{flow.ScopeRead, flow.ScopeAdmin}},
		poster:  {Subject: "engine", Scopes: []flow.Scope{flow.ScopeRecordsWrite}},
		tenants: {Subject: "tom", Scopes: []flow.Scope{flow.ScopeRead, flow.ScopeAdmin}, Tenants: []string{"a", "b"}},
	}
	content := "[]\n"
	if len(tokens) > 0 {
		content = ""
	}
	for _, token := range tokens {
		entry := all[token]
		entry.SHA256 = auth.Digest(token)
		content += entry.Line() + "\n"
	}
	fatal(t, os.WriteFile(file+".new", []byte(content), 0o600))
	fatal(t, os.Rename(file+".new", file))
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// get requests a page with the headers of a browser.
func (s *site) get(path string) (*http.Response, string) {
	s.t.Helper()
	return s.do(http.MethodGet, path, nil)
}

func (s *site) post(path string, form url.Values) (*http.Response, string) {
	s.t.Helper()
	return s.do(http.MethodPost, path, form)
}

func (s *site) do(method, path string, form url.Values) (*http.Response, string) {
	s.t.Helper()
	req, err := http.NewRequest(method, s.url+path, strings.NewReader(form.Encode()))
	fatal(s.t, err)
	req.Header.Set("Accept", "text/html")
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	res, err := s.client.Do(req)
	fatal(s.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	fatal(s.t, err)
	return res, string(body)
}

// signIn signs in with a token and returns the CSRF token of the session.
func (s *site) signIn(token string) (csrf string) {
	s.t.Helper()
	res, body := s.post("/sign-in", url.Values{"token": {token}})
	if res.StatusCode != http.StatusSeeOther {
		s.t.Fatalf("signing in: %s\n%s", res.Status, body)
	}
	_, page := s.get("/processes")
	return csrfOf(s.t, page)
}

func csrfOf(t *testing.T, page string) string {
	t.Helper()
	found := regexp.MustCompile(`name="csrf" value="([^"]+)"`).FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("no form brings a csrf token:\n%s", page)
	}
	return found[1]
}

// wants fails unless the response has the status and contains every part.
func wants(t *testing.T, what string, res *http.Response, body string, status int, texts ...string) {
	t.Helper()
	if res.StatusCode != status {
		t.Errorf("%s: %s, want %d", what, res.Status, status)
	}
	for _, text := range texts {
		if !strings.Contains(body, text) {
			t.Errorf("%s: %q is not in\n%s", what, text, body)
		}
	}
}
