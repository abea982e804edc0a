package ops

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Tracing sends spans by OTLP over HTTP, as the OTEL_ variables of OpenTelemetry
// say. A nil Tracing traces nothing.
type Tracing struct{ provider *sdk.TracerProvider }

// sendLast is how long Close waits for the spans that were not sent yet.
const sendLast = 2 * time.Second

// NewTracing begins to trace when the environment names where spans go to:
// OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, or
// OTEL_TRACES_EXPORTER=otlp for the collector of this machine. Else it returns nil.
// Sampling, limits, headers and certificates are the SDK's to read. service and
// version are what the spans are of, unless OTEL_SERVICE_NAME says otherwise.
func NewTracing(ctx context.Context, service, version string, log *slog.Logger) (*Tracing, error) {
	if wanted, err := tracingWanted(os.Getenv); err != nil || !wanted {
		return nil, err
	}
	otel.SetErrorHandler(&failures{log: log})
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("send spans as OTEL_EXPORTER_OTLP_* say: %w", err)
	}
	of, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", version)),
		resource.WithFromEnv())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err), exporter.Shutdown(ctx))
	}
	log.Info("spans are sent", "service", service)
	return &Tracing{sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(of))}, nil
}

// tracingWanted reads whether anything is to be traced. What is asked for and cannot
// be had is an error.
func tracingWanted(environ func(string) string) (bool, error) {
	if strings.EqualFold(strings.TrimSpace(environ("OTEL_SDK_DISABLED")), "true") {
		return false, nil
	}
	wanted := environ("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || environ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
	switch exporter := strings.TrimSpace(environ("OTEL_TRACES_EXPORTER")); exporter {
	case "":
	case "none":
		return false, nil
	case "otlp":
		wanted = true
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER=%s: spans can be sent by otlp, or none", exporter)
	}
	if !wanted {
		return false, nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		protocol := strings.TrimSpace(environ(name))
		if protocol != "" && protocol != "http/protobuf" {
			return false, fmt.Errorf("%s=%s: spans are sent by http/protobuf, which collectors take at port 4318", name, protocol)
		}
		if protocol != "" {
			break // what is said of traces alone comes first
		}
	}
	return true, nil
}

// Tracer makes the spans of one package; nil where nothing is traced.
func (t *Tracing) Tracer(name string) trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer("sluice/pkg/" + name)
}

// Logger is log with trace_id and span_id in every line that belongs to a span.
func (t *Tracing) Logger(log *slog.Logger) *slog.Logger {
	if t == nil {
		return log
	}
	return slog.New(spanned{log.Handler()})
}

// Close sends the spans that were not sent yet, for a short while.
func (t *Tracing) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), sendLast)
	defer cancel()
	return t.provider.Shutdown(ctx)
}

// spanned names the span of each line.
type spanned struct{ slog.Handler }

func (h spanned) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r = r.Clone() // others have it too
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h spanned) WithAttrs(attrs []slog.Attr) slog.Handler {
	return spanned{h.Handler.WithAttrs(attrs)}
}
func (h spanned) WithGroup(name string) slog.Handler { return spanned{h.Handler.WithGroup(name)} }

// failures logs what goes wrong with spans, now and then: where their collector is
// away, nothing else suffers.
type failures struct {
	log *slog.Logger

	mu     sync.Mutex
	told   time.Time
	others int // failures since
}

// tellEvery is how often failures are told.
const tellEvery = time.Minute

// Handle implements otel.ErrorHandler.
func (f *failures) Handle(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); f.told.IsZero() || now.Sub(f.told) >= tellEvery {
		f.log.Warn("spans are lost, or their settings are not understood", "error", err, "others", f.others)
		f.told, f.others = now, 0
		return
	}
	f.others++
}
