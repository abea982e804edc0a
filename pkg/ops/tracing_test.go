package ops_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/ops"
)

// TestTracingIsOffUnlessItIsAskedFor: by the variables of OpenTelemetry.
func TestTracingIsOffUnlessItIsAskedFor(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  map[string]string
		on   bool
		want string // of the error
	}{
		{name: "nothing is said"},
		{name: "an endpoint", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, on: true},
		{name: "an endpoint of traces", env: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"}, on: true},
		{name: "an exporter", env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, on: true},
		{name: "no exporter", env: map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}},
		{name: "no SDK", env: map[string]string{"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}},
		{name: "a sampler alone", env: map[string]string{"OTEL_TRACES_SAMPLER": "always_on"}},
		{name: "an exporter that is not there", env: map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, want: "OTEL_TRACES_EXPORTER=zipkin"},
		{name: "a protocol that is not there", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, want: "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"},
		{name: "of two protocols that of traces", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, on: true},
		{name: "attributes that are none", env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_RESOURCE_ATTRIBUTES": "nonsense"}, want: "OTEL_RESOURCE_ATTRIBUTES"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for name, value := range tt.env {
				t.Setenv(name, value)
			}
			tracing, err := ops.NewTracing(t.Context(), "test", "v1", slog.New(slog.DiscardHandler))
			if tt.want != "" {
				expect.Not(t, err == nil || !strings.Contains(err.Error(), tt.want), "got %v, want %s in it", err, tt.want)
				return
			}
			expect.Not(t, err != nil || (tracing != nil) != tt.on || (tracing.Tracer("x") != nil) != tt.on, "tracing %v (%v), want %v", tracing != nil, err, tt.on)
			expect.NoError(t, tracing.Close())
		})
	}
}

// TestLinesNameTheirSpan: and those of no span stay as they are.
func TestLinesNameTheirSpan(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000") // there is nothing to send to
	tracing, err := ops.NewTracing(t.Context(), "test", "v1", slog.New(slog.DiscardHandler))
	fatal.If(t, err)
	defer tracing.Close()
	var out bytes.Buffer
	log := tracing.Logger(slog.New(slog.NewTextHandler(&out, nil))).With("lane", 1)
	log.Info("before")
	ctx, span := tracing.Tracer("test").Start(t.Context(), "x")
	log.InfoContext(ctx, "within")
	lines := strings.Split(out.String(), "\n")
	want := "lane=1 trace_id=" + span.SpanContext().TraceID().String() + " span_id=" + span.SpanContext().SpanID().String()
	expect.Not(t, strings.Contains(lines[0], "trace_id") || !strings.HasSuffix(lines[1], want), "got %q, want the second alone to end in %s", lines, want)
}

// TestMetricsAsOpenMetrics: to who asks for it, with examples; to others as before.
func TestMetricsAsOpenMetrics(t *testing.T) {
	s := ops.New(ops.Config{Version: "v9.9.9", Commit: "c0ffee"}, slog.New(slog.DiscardHandler))
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sluice_test_seconds", Buckets: []float64{1}})
	s.Registry().MustRegister(h)
	h.(prometheus.ExemplarObserver).ObserveWithExemplar(0.5, prometheus.Labels{"trace_id": "4711"})
	page := func(accept string) string {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		return w.Body.String()
	}
	const build = `sluice_build_info{commit="c0ffee",go="go`
	if got := page("application/openmetrics-text; version=1.0.0"); !strings.Contains(got, `sluice_test_seconds_bucket{le="1.0"} 1 # {trace_id="4711"} 0.5`) || !strings.HasSuffix(got, "# EOF\n") || !strings.Contains(got, build) {
		t.Errorf("as OpenMetrics:\n%s", got)
	}
	got := page("text/plain")
	for _, want := range []string{"go_goroutines ", "process_resident_memory_bytes ", "go_build_info{"} {
		expect.Not(t, !strings.Contains(got, want), "metrics lack %q", want)
	}
	expect.Not(t, !strings.Contains(got, `sluice_test_seconds_bucket{le="1"} 1`+"\n") || !strings.Contains(got, `version="v9.9.9"} 1`), "as text:\n%s", got)
}
