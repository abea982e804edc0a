package api

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"sluice/pkg/record"
)

// spans makes a span of each request. Without a tracer nothing is traced, and a
// request passes here at the cost of comparisons: the SDK is not asked. No
// attribute holds a token, a key or anything of a body.
type spans struct{ tracer trace.Tracer }

// begin begins the span of a call, in the trace that its client names, if any.
// From here on it is in the context of the request.
func (s spans) begin(c *call, route string) {
	if s.tracer == nil {
		return
	}
	if c.c.FullPath() == "" { // what clients call a path that is not ours is no name
		route = c.r.Method
	}
	ctx := propagation.TraceContext{}.Extract(c.r.Context(), propagation.HeaderCarrier(c.r.Header))
	ctx, _ = s.tracer.Start(ctx, route, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("http.request.method", c.r.Method),
		attribute.String("http.route", c.c.FullPath()),
		attribute.Int64("http.request.body.size", max(c.r.ContentLength, 0)),
		attribute.String("sluice.request_id", c.id),
	))
	c.r = c.r.WithContext(ctx)
}

// accepted says what a post has brought.
func (s spans) accepted(c *call, req *record.Request, replayed bool) {
	if s.tracer == nil {
		return
	}
	trace.SpanFromContext(c.r.Context()).SetAttributes(
		attribute.String("sluice.source", c.who.Source),
		attribute.Int("sluice.records", req.Len()),
		attribute.Bool("sluice.replayed", replayed),
	)
}

// refused says why a call has failed.
func (s spans) refused(c *call, code code, status int) {
	if s.tracer == nil {
		return
	}
	span := trace.SpanFromContext(c.r.Context())
	span.SetAttributes(attribute.String("error.type", string(code)))
	if status >= 500 { // a client's mistake is no error of the server's span
		span.SetStatus(codes.Error, string(code))
	}
}

// end ends the span of a call.
func (s spans) end(c *call) {
	if s.tracer == nil {
		return
	}
	span := trace.SpanFromContext(c.r.Context())
	span.SetAttributes(attribute.Int("http.response.status_code", c.c.Writer.Status()))
	span.End()
}

// parent is the trace context that travels with what a call brings: of its span,
// when that is kept; else what its client has sent, as long as it is well-formed.
func (s spans) parent(c *call) string {
	if s.tracer != nil {
		if sc := trace.SpanContextFromContext(c.r.Context()); sc.IsSampled() {
			return record.TraceParent(sc.TraceID(), sc.SpanID())
		}
	}
	return traceParent(c.r.Header)
}

// observe counts how long something of a call took, with its trace as an example
// when that is kept.
func (s spans) observe(c *call, o prometheus.Observer, took time.Duration) {
	if s.tracer != nil {
		if sc := trace.SpanContextFromContext(c.r.Context()); sc.IsSampled() {
			o.(prometheus.ExemplarObserver).ObserveWithExemplar(took.Seconds(),
				prometheus.Labels{"trace_id": sc.TraceID().String(), "span_id": sc.SpanID().String()})
			return
		}
	}
	o.Observe(took.Seconds())
}
