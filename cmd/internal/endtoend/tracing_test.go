package endtoend

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// receiver is an OTLP receiver over HTTP, which keeps all spans.
type receiver struct {
	*httptest.Server
	mu  sync.Mutex
	all []kept
	raw []byte // every body, to search for secrets
}

// kept is a span and its service.
type kept struct {
	*spans.Span
	service string
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var export collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &export)
		}
		if err != nil || req.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", req.URL.Path, err)
			http.Error(w, "no spans", http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.raw = append(r.raw, body...)
		for _, of := range export.ResourceSpans {
			service := ""
			for _, a := range of.Resource.Attributes {
				if a.Key == "service.name" {
					service = a.Value.GetStringValue()
				}
			}
			for _, scope := range of.ScopeSpans {
				for _, span := range scope.Spans {
					r.all = append(r.all, kept{span, service})
				}
			}
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// find waits for the span of a trace whose name has this prefix.
func (r *receiver) find(t *testing.T, trace, name string) (found kept) {
	t.Helper()
	eventually(t, 30*time.Second, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		var names []string
		for _, span := range r.all {
			if hex.EncodeToString(span.TraceId) != trace {
				continue
			}
			if strings.HasPrefix(span.Name, name) {
				found = span
				return nil
			}
			names = append(names, span.Name)
		}
		return fmt.Errorf("trace %s has no span %s, it has %q", trace, name, names)
	})
	return found
}

// shared waits for the span of a block of several requests.
func (r *receiver) shared(t *testing.T) (found kept) {
	t.Helper()
	eventually(t, 30*time.Second, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, span := range r.all {
			if strings.HasPrefix(span.Name, "store ") && len(span.Links) > 1 {
				found = span
				return nil
			}
		}
		return errors.New("no block has two requests")
	})
	return found
}

func linksTo(span, other kept) bool {
	return slices.ContainsFunc(span.Links, func(l *spans.Span_Link) bool { return string(l.SpanId) == string(other.SpanId) })
}

// TestOneTraceFromPostToInsert spans the client, a separate api and a separate ingester.
// A process without tracing sends no spans.
func TestOneTraceFromPostToInsert(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.startNATS()
	s.startEngine()
	r := newReceiver(t)
	env := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + r.URL, "OTEL_BSP_SCHEDULE_DELAY=100"}
	api := startWith(t, env, "api", "--http", s.http, "--ops", s.ops, "--nats", "nats://"+s.nats, "--tokens", s.tokenFile(),
		"--fingerprint-key", filepath.Join(t.TempDir(), "key"), "--access-log")
	s.waitReady(api, s.ops)

	trace := func(n int) string { return fmt.Sprintf("0af7651916cd43dd8448eb211c8031%02d", n) }
	const parent = "b7ad6b7169203331"
	post := func(n int) {
		t.Helper()
		header := http.Header{"Traceparent": {"00-" + trace(n) + "-" + parent + "-01"}}
		body := fmt.Sprintf(`{"id":"1-%d","valueType":"JOB","value":{"variables":{"iban":"DE00 4711 %d"}}}`, n, n)
		fatal.If(t, wantOK(s.sendWith(header, http.MethodPost, "/flow/flowRecord/batch", []byte(body))))
	}
	for n := range 20 { // they wait for the ingester, and share a block or two
		post(10 + n)
	}
	ingester := startWith(t, env, "ingester", "--ops", s.ingesterOps, "--nats", "nats://"+s.nats, "--clickhouse", "clickhouse://default@"+s.clickhouse+"/flow")
	s.waitReady(ingester, s.ingesterOps)
	s.eventuallyQuery(30*time.Second, "SELECT count() FROM flow.records", "20")
	post(0)
	s.eventuallyQuery(30*time.Second, "SELECT count() FROM flow.records", "21")

	served := r.find(t, trace(0), "POST /flow/flowRecord/batch")
	if got := hex.EncodeToString(served.ParentSpanId); got != parent || served.service != "sluice-api" || served.Kind != spans.Span_SPAN_KIND_SERVER {
		t.Errorf("the span of the request: %s of %s, child of %s, want it of sluice-api, child of %s", served.Kind, served.service, got, parent)
	}
	stored := r.find(t, trace(0), "store FLOW_0")
	inserted := r.find(t, trace(0), "INSERT flow.records")
	for _, child := range []struct{ span, of kept }{
		{r.find(t, trace(0), "publish"), served}, {r.find(t, trace(0), "send FLOW_0"), served}, {stored, served}, {inserted, stored},
	} {
		if string(child.span.ParentSpanId) != string(child.of.SpanId) {
			t.Errorf("%s is no child of %s", child.span.Name, child.of.Name)
		}
	}
	if stored.service != "sluice-ingester" || inserted.service != "sluice-ingester" {
		t.Errorf("stored by %s, inserted by %s, want sluice-ingester", stored.service, inserted.service)
	}
	expect.Not(t, !linksTo(stored, served) || !linksTo(r.find(t, trace(0), "send FLOW_0"), served), "the spans of entry and block have no link to their request")

	t.Run("from each request of a block one comes to it, and back", func(t *testing.T) {
		block := r.shared(t)
		for _, link := range block.Links {
			trace := hex.EncodeToString(link.TraceId)
			if request := r.find(t, trace, "POST /flow/flowRecord/batch"); string(request.SpanId) != string(link.SpanId) {
				t.Errorf("a link of the block leads to %x, not to the request of trace %s", link.SpanId, trace)
			}
			expect.Not(t, trace != hex.EncodeToString(block.TraceId) && !linksTo(r.find(t, trace, "stored"), block), "from the request of trace %s nothing leads to its block", trace)
		}
	})
	t.Run("nothing of a record or a token is sent", func(t *testing.T) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, secret := range []string{s.token, "iban", "4711"} {
			expect.Not(t, strings.Contains(string(r.raw), secret), "spans hold %q", secret)
		}
	})
	t.Run("a change is traced until it is applied", func(t *testing.T) {
		header := http.Header{"Traceparent": {"00-" + trace(9) + "-" + parent + "-01"}}
		fatal.If(t, wantOK(s.sendWith(header, http.MethodPatch, "/spm/login/current/user", []byte(`{"name":"Ann"}`))))
		r.find(t, trace(9), "PATCH /spm/login/current/user")
		r.find(t, trace(9), "apply changes")
	})
	t.Run("what is still to be sent is sent at the end", func(t *testing.T) {
		post(5)
		expect.Equal(t, "the api stopped with exit", 0, api.stop())
		r.find(t, trace(5), "POST /flow/flowRecord/batch")
	})
}
