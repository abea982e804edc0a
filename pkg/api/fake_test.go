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

// stream is a Stream in memory that keeps its contract: what is stored under an
// ID is stored once, whole. Every fault exists twice.
type stream struct {
	mu      sync.Mutex
	hashes  map[string]string // by ID
	records []string          // stored, each as it was posted, compact
	subs    []flow.Submission
	lanes   int                         // of every source; 0 is 1
	before  func(context.Context) error // a fault: nothing is stored
	after   func(context.Context) error // a fault: it is stored, but no answer says so
	behind  chan struct{}               // nothing can be queried until it is closed; nil when everything can
	waited  []flow.Place                // that were waited for
}

// Ends is the last submission.
func (s *stream) Ends(context.Context, string) ([]flow.Place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []flow.Place{{Seq: uint64(len(s.subs))}}, nil
}

// WaitStored waits for behind to be closed, if there is one.
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
			panic("a chunk of a lane there is not")
		}
		s.records = append(s.records, recordsOf(p)...)
	}
	if s.after != nil {
		return flow.Receipt{}, s.after(ctx)
	}
	return flow.Receipt{Places: []flow.Place{{Seq: uint64(len(s.subs))}}}, nil
}

// stored returns the records stored so far.
func (s *stream) stored() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.records...)
}

// canonical are records whose members are sorted.
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

// letters keeps dead letters in memory: the same bytes of a source once.
type letters struct {
	mu    sync.Mutex
	all   []flow.Dead
	fault error
	full  error // of every source
}

func (l *letters) Admits(string) error { return l.full }

func (l *letters) SetAside(_ context.Context, d flow.Dead) error {
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

// who lets tokens in that are names of identities.
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

// Configured: all of them are.
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
	"twin":    {Subject: "engine-a", Source: "cluster-b", Scopes: flow.Scopes()}, // of the same team
	"other":   {Subject: "engine-b", Scopes: flow.Scopes()},
	"plain":   {Subject: "plain", Scopes: []flow.Scope{flow.ScopeUserWrite, flow.ScopeFieldsWrite, flow.ScopeRead}},
	"writer":  {Subject: "writer", Scopes: []flow.Scope{flow.ScopeFieldsWrite}},
	"reader":  {Subject: "reader", Scopes: []flow.Scope{flow.ScopeRead}},
	"acme":    {Subject: "acme", Source: "acme", Scopes: flow.Scopes(), Tables: []string{"orders", "a/b"}, Tenants: []string{"acme", record.DefaultTenant}},
	"sparing": {Subject: "sparing", Source: "sparing", Scopes: flow.Scopes(), Exclude: []flow.Exclusion{{ValueType: "JOB_*"}}},
	"nobody":  {Subject: "nobody", Source: "nobody", Scopes: flow.Scopes(), Tables: []string{}, Tenants: []string{}},
	"slow":    {Subject: "slow", Scopes: flow.Scopes(), Rate: 2},
}

// door is an api under test with the parts it works with.
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

// request makes a request of a subject that may do everything; changes adapt it.
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

// do makes a request, and holds it and its answer against the document.
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

// block makes posts wait in the stream until they may go on, one token for each that
// entered; others come through once free is set.
func (d *door) block() (entered chan struct{}, free *atomic.Bool, goOn func()) {
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

// serveAll makes the same post n times at once.
func (d *door) serveAll(n int, body string, changes ...func(*http.Request)) (answers chan *http.Response) {
	answers = make(chan *http.Response, n)
	for range n {
		go func() { answers <- d.serveOne(request(http.MethodPost, "/flow/flowRecord/batch", body, changes...)) }()
	}
	return answers
}

// serveOne makes a request without a look at the document, for bodies that are
// too large for that.
func (d *door) serveOne(r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	d.Handler().ServeHTTP(w, r)
	return w.Result()
}

// held reads how much memory is held for bodies in flight.
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

// problem is what a refusal says, as its readers see it.
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

// wantOK fails unless the answer is exactly what the specification says.
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
		t.Fatalf("got %d %q, which is no problem: %v", resp.StatusCode, body, err)
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

// config is small enough for tests to reach its limits.
func config() api.Config {
	return api.Config{Listen: "127.0.0.1:0"}
}

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}

// tryNew makes an api that is not meant to run.
func tryNew(cfg api.Config) error {
	_, err := api.New(cfg, api.Deps{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	return err
}
