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

// Tracing exports spans by OTLP over HTTP, configured by OpenTelemetry's OTEL_ variables. A
// nil Tracing does nothing.
type Tracing struct{ provider *sdk.TracerProvider }

// sendLast bounds the final export in Close.
const sendLast = 2 * time.Second

// NewTracing enables tracing if the environment sets a destination:
// OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, or
// OTEL_TRACES_EXPORTER=otlp for the local collector. Else it returns nil. The SDK reads
// sampling, limits, headers, and certificates. OTEL_SERVICE_NAME overrides service.
func NewTracing(ctx context.Context, service, version string, log *slog.Logger) (*Tracing, error) {
	if wanted, err := tracingWanted(os.Getenv); err != nil || !wanted {
		return nil, err
	}
	otel.SetErrorHandler(&failures{log: log})
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("configure the span exporter (OTEL_EXPORTER_OTLP_*): %w", err)
	}
	of, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", version)),
		resource.WithFromEnv())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err), exporter.Shutdown(ctx))
	}
	log.Info("tracing is on", "service", service)
	return &Tracing{sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(of))}, nil
}

// tracingWanted reports whether the environment enables tracing. Unsupported settings are an
// error.
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
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER=%s: unsupported; use otlp or none", exporter)
	}
	if !wanted {
		return false, nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		protocol := strings.TrimSpace(environ(name))
		if protocol != "" && protocol != "http/protobuf" {
			return false, fmt.Errorf("%s=%s: unsupported; use http/protobuf (port 4318 of collectors)", name, protocol)
		}
		if protocol != "" {
			break // the variable of traces takes precedence
		}
	}
	return true, nil
}

// Tracer is the tracer of one package; nil if tracing is off.
func (t *Tracing) Tracer(name string) trace.Tracer {
	if t == nil {
		return nil
	}
	return t.provider.Tracer("sluice/pkg/" + name)
}

// Logger is log with trace_id and span_id in every line within a span.
func (t *Tracing) Logger(log *slog.Logger) *slog.Logger {
	if t == nil {
		return log
	}
	return slog.New(spanned{log.Handler()})
}

// Close exports the remaining spans, within sendLast.
func (t *Tracing) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), sendLast)
	defer cancel()
	return t.provider.Shutdown(ctx)
}

// spanned adds the ids of a line's span.
type spanned struct{ slog.Handler }

func (h spanned) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		r = r.Clone() // other handlers share it
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h spanned) WithAttrs(attrs []slog.Attr) slog.Handler {
	return spanned{h.Handler.WithAttrs(attrs)}
}
func (h spanned) WithGroup(name string) slog.Handler { return spanned{h.Handler.WithGroup(name)} }

// failures logs export errors, rate-limited: a missing collector has no other effect.
type failures struct {
	log *slog.Logger

	mu     sync.Mutex
	logged time.Time
	others int // errors since the last line
}

// logEvery is the interval of logged errors.
const logEvery = time.Minute

func (f *failures) Handle(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); f.logged.IsZero() || now.Sub(f.logged) >= logEvery {
		f.log.Warn("spans are lost or their settings are invalid", "error", err, "others", f.others)
		f.logged, f.others = now, 0
		return
	}
	f.others++
}
