package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/api"
	"sluice/pkg/change"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/record/recordtest"
)

// stream is a Stream in memory that keeps its contract: a request is stored once per ID, whole.
// Every fault exists twice.
type stream struct {
	mu      sync.Mutex
	hashes  map[string]string // by ID
	records []string          // stored, each as posted, compacted
	subs    []flow.Submission
	lanes   int                         // of every source; 0 is 1
	before  func(context.Context) error // a fault, not stored
	after   func(context.Context) error // a fault, stored but unanswered
	behind  chan struct{}               // nothing can be queried until it is closed; nil: everything can
	waited  []flow.Place                // arguments of WaitStored
}

// Ends is the last submission.
func (s *stream) Ends(context.Context, string) ([]flow.Place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []flow.Place{{Seq: uint64(len(s.subs))}}, nil
}

// WaitStored waits until behind is closed, if set.
func (s *stream) WaitStored(ctx context.Context, places []flow.Place) error {
	s.mu.Lock()
	s.waited = append(s.waited, places...)
	behind := s.behind
	s.mu.Unlock()
	if behind == nil {
		return nil
	}
	select {
	case <-behind:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *stream) Publish(ctx context.Context, sub *flow.Submission) (flow.Receipt, error) {
	if s.before != nil {
		if err := s.before(ctx); err != nil {
			return flow.Receipt{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	hash, known := s.hashes[sub.ID]
	switch {
	case known && hash != sub.Hash:
		return flow.Receipt{}, flow.ErrKeyReused
	case known:
		return flow.Receipt{Replayed: true}, nil
	}
	if s.hashes == nil {
		s.hashes = map[string]string{}
	}
	s.hashes[sub.ID] = sub.Hash
	chunks, err := sub.Records.Cut(max(1, s.lanes))
	if err != nil {
		return flow.Receipt{}, err
	}
	kept := *sub
	kept.Records = nil
	s.subs = append(s.subs, kept)
	for _, p := range chunks {
		if p.Lane >= max(1, s.lanes) {
			panic("a chunk of an unknown lane")
		}
		s.records = append(s.records, recordsOf(p)...)
	}
	if s.after != nil {
		return flow.Receipt{}, s.after(ctx)
	}
	return flow.Receipt{Places: []flow.Place{{Seq: uint64(len(s.subs))}}}, nil
}

func (s *stream) stored() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.records...)
}

func canonical(records []string) (all []string) {
	for _, raw := range records {
		all = append(all, recordtest.Canonical([]byte(raw)))
	}
	return all
}

func recordsOf(p flow.Chunk) (list []string) {
	err := record.Each(&flow.Message{Body: p.Body, Encoding: p.Encoding, Records: p.Records}, func(_ int, raw []byte) error {
		list = append(list, string(raw))
		return nil
	})
	if err != nil {
		panic(err)
	}
	return list
}

// letters keeps dead letters in memory, deduplicated by source and bytes.
type letters struct {
	mu    sync.Mutex
	all   []flow.Dead
	fault error
	full  error // of every source
}

func (l *letters) Admits(string) error { return l.full }

func (l *letters) Publish(_ context.Context, d flow.Dead) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.all {
		if bytes.Equal(e.Message.Body, d.Message.Body) && e.Message.Source == d.Message.Source {
			return l.fault
		}
	}
	if l.fault == nil {
		l.all = append(l.all, d)
	}
	return l.fault
}

// who authenticates tokens that equal the names of callers.
type who map[string]flow.Caller

func (w who) Authenticate(header string) (flow.Caller, error) {
	token, _ := strings.CutPrefix(header, "Bearer ")
	id, ok := w[token]
	switch {
	case token == "":
		return id, flow.ErrTokenMissing
	case token == "unverified":
		return id, flow.ErrTokenUnverified
	case !ok:
		return id, flow.ErrTokenInvalid
	}
	return id, nil
}

// Configured reports true for all subjects.
func (w who) Configured(subject string) bool {
	for _, id := range w {
		if id.Subject == subject {
			return true
		}
	}
	return false
}

var allSubjects = who{
	"engine":  {Subject: "engine-a", Scopes: flow.Scopes()},
	"twin":    {Subject: "engine-a", Source: "cluster-b", Scopes: flow.Scopes()}, // same subject, another source
	"other":   {Subject: "engine-b", Scopes: flow.Scopes()},
	"plain":   {Subject: "plain", Scopes: []flow.Scope{flow.ScopeUserWrite, flow.ScopeFieldsWrite, flow.ScopeRead}},
	"writer":  {Subject: "writer", Scopes: []flow.Scope{flow.ScopeFieldsWrite}},
	"reader":  {Subject: "reader", Scopes: []flow.Scope{flow.ScopeRead}},
	"acme":    {Subject: "acme", Source: "acme", Scopes: flow.Scopes(), Tables: []string{"orders", "a/b"}, Tenants: []string{"acme", record.DefaultTenant}},
	"sparing": {Subject: "sparing", Source: "sparing", Scopes: flow.Scopes(), Exclude: []flow.Exclusion{{ValueType: "JOB_*"}}},
	"nobody":  {Subject: "nobody", Source: "nobody", Scopes: flow.Scopes(), Tables: []string{}, Tenants: []string{}},
	"slow":    {Subject: "slow", Scopes: flow.Scopes(), Rate: 2},
}

// door is an api under test with its dependencies.
type door struct {
	*api.Server
	stream *stream
	ledger *ledger
	dead   *letters
	reg    *prometheus.Registry
	log    *bytes.Buffer // not read while requests run

	t        testing.TB
	contract *contract
}

func newDoor(t testing.TB, cfg api.Config) *door {
	t.Helper()
	d := &door{stream: &stream{}, ledger: newLedger(), dead: &letters{}, reg: prometheus.NewRegistry(), log: &bytes.Buffer{}}
	s, err := api.New(cfg, api.Deps{
		Auth: allSubjects, Stream: d.stream, Progress: d.stream, Changes: d.ledger, Last: d.ledger, State: d.ledger, Usage: d.ledger, Dead: d.dead,
		Secrets: &change.Secrets{Key: bytes.Repeat([]byte("k"), 32), Concurrency: 2},
	}, slog.New(slog.NewTextHandler(d.log, nil)), d.reg)
	fatal.If(t, err)
	d.Server, d.t = s, t
	d.contract = contractOf(t, d)
	return d
}

// request makes a request of a subject with all scopes; changes adapt it.
func request(method, path, body string, changes ...func(*http.Request)) *http.Request {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer engine")
	r.Header.Set("Content-Type", "application/json")
	for _, c := range changes {
		c(r)
	}
	return r
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func without(name string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Del(name) }
}

// do makes a request, and checks it and the response against the OpenAPI document.
func (d *door) do(r *http.Request) *http.Response {
	d.t.Helper()
	sent, err := io.ReadAll(r.Body)
	fatal.If(d.t, err)
	r.Body = io.NopCloser(bytes.NewReader(sent))
	w := httptest.NewRecorder()
	d.Handler().ServeHTTP(w, r)
	d.contract.check(d.t, r, sent, w.Result(), w.Body.Bytes())
	return w.Result()
}

func (d *door) post(body string, changes ...func(*http.Request)) *http.Response {
	return d.do(request(http.MethodPost, "/flow/flowRecord/batch", body, changes...))
}

// block makes posts block in the stream: entered gets a token for each, and proceed releases them. Once free is set,
// others pass.
func (d *door) block() (entered chan struct{}, free *atomic.Bool, proceed func()) {
	leave := make(chan struct{})
	entered, free = make(chan struct{}, 100), &atomic.Bool{}
	d.stream.before = func(context.Context) error {
		if !free.Load() {
			entered <- struct{}{}
			<-leave
		}
		return nil
	}
	return entered, free, func() { close(leave) }
}

// serveAll makes the same post n times concurrently.
func (d *door) serveAll(n int, body string, changes ...func(*http.Request)) (answers chan *http.Response) {
	answers = make(chan *http.Response, n)
	for range n {
		go func() { answers <- d.serveOne(request(http.MethodPost, "/flow/flowRecord/batch", body, changes...)) }()
	}
	return answers
}

// serveOne makes a request without checking it against the document, for bodies too large for
// that.
func (d *door) serveOne(r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	d.Handler().ServeHTTP(w, r)
	return w.Result()
}

// held is the memory held for bodies in flight.
func (d *door) held(t testing.TB) float64 {
	return d.metric(t, "sluice_api_bodies_in_flight_bytes", "")
}

// metric reads a counter or gauge; label is the value of one of its labels.
func (d *door) metric(t testing.TB, name, label string) float64 {
	t.Helper()
	families, err := d.reg.Gather()
	fatal.If(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			matches := label == ""
			for _, l := range m.GetLabel() {
				matches = matches || l.GetValue() == label
			}
			if f.GetName() == name && matches {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s of %q", name, label)
	return 0
}

// problem is the body of a refusal.
type problem struct {
	Type     string           `json:"type"`
	Title    string           `json:"title"`
	Status   int              `json:"status"`
	Detail   string           `json:"detail"`
	Instance string           `json:"instance"`
	Code     string           `json:"code"`
	Errors   []record.Problem `json:"errors"`
	Total    int              `json:"totalErrors"`
}

func text(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	fatal.If(t, err)
	resp.Body.Close()
	return string(b)
}

// wantOK fails unless the answer is exactly the specification's.
func wantOK(t testing.TB, resp *http.Response) {
	t.Helper()
	body := text(t, resp)
	if resp.StatusCode != http.StatusOK || body != `{"status":"OK"}` {
		t.Fatalf("got %d %s, want 200 {\"status\":\"OK\"}", resp.StatusCode, body)
	}
	if got := resp.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type: got %q, want application/json", got)
	}
}

// wantProblem fails unless the answer is a well-formed problem of this code.
func wantProblem(t testing.TB, resp *http.Response, status int, code string) problem {
	t.Helper()
	body := text(t, resp)
	var p problem
	dec := json.NewDecoder(strings.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		t.Fatalf("got %d %q, not a problem: %v", resp.StatusCode, body, err)
	}
	id := strings.TrimPrefix(p.Instance, "urn:uuid:")
	if got := resp.Header.Get("X-Request-Id"); got != id && !strings.HasPrefix(got, "client-") {
		t.Errorf("X-Request-Id is %q, the instance %q", got, p.Instance)
	}
	want := problem{
		Type: "/docs#" + code, Title: p.Title, Status: status, Detail: p.Detail,
		Instance: "urn:uuid:" + id, Code: code, Errors: p.Errors, Total: p.Total,
	}
	if diff := cmp.Diff(want, p); diff != "" || resp.StatusCode != status {
		t.Fatalf("got %d %s, want %d %s (-want +got):\n%s", resp.StatusCode, body, status, code, diff)
	}
	if got := resp.Header.Get("Content-Type"); got != "application/problem+json" || len(id) != 36 || p.Title == "" || p.Detail == "" {
		t.Errorf("Content-Type %q, X-Request-Id %q, title %q, detail %q: one is wrong or missing", got, id, p.Title, p.Detail)
	}
	return p
}

// config has limits that tests can reach.
func config() api.Config {
	return api.Config{Listen: "127.0.0.1:0"}
}

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}

// tryNew returns the error of creating an api that will not run.
func tryNew(cfg api.Config) error {
	_, err := api.New(cfg, api.Deps{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	return err
}
