package ingest

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"sluice/pkg/flow"
)

// maxLinks bounds the linked requests of a block's span.
const maxLinks = 128

// spans are those of the sampled requests, with their receive times; of many only the first.
func (b *block) spans() (links []trace.Link, received []time.Time) {
	for _, a := range b.arrivals {
		if span, ok := spanOfRequest(a.traceParent); ok && len(links) < maxLinks {
			links, received = append(links, trace.Link{SpanContext: span}), append(received, a.received)
		}
	}
	return links, received
}

// spanOfRequest is the span of a request; ok is false if there is none, or it is not sampled.
func spanOfRequest(traceParent string) (trace.SpanContext, bool) {
	id, span, ok := flow.TraceSpan(traceParent)
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: trace.FlagsSampled, Remote: true}), ok
}

// traced stores a block within a span, which starts at its first message. It is in the trace of the first sampled request, with links
// to all of them; each of the others gets a span "stored" in its own trace, with a link back.
func (s *session) traced(ctx context.Context, b *block) error {
	links, _ := b.spans()
	parent := ctx
	if len(links) > 0 {
		parent = trace.ContextWithSpanContext(ctx, links[0].SpanContext)
	}
	lane := "FLOW_" + strconv.Itoa(s.number)
	storing, span := s.cfg.Tracer.Start(parent, "store "+lane, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithTimestamp(b.born), trace.WithLinks(links...), trace.WithAttributes(
			attribute.String("messaging.system", "nats"),
			attribute.String("messaging.destination.name", lane),
			attribute.Int64("messaging.batch.message_count", int64(b.end.Seq-b.first+1)),
			attribute.Int64("sluice.first_sequence", int64(b.first)),
			attribute.Int64("sluice.last_sequence", int64(b.end.Seq)),
		))
	defer span.End()
	if err := s.block(storing, b); err != nil {
		span.SetStatus(codes.Error, "the block is not stored yet")
		return &spanError{err, span.SpanContext()}
	}
	span.SetAttributes(attribute.Int64("sluice.records", int64(b.totals.Read)), attribute.Int64("sluice.deduplicated", int64(b.totals.Deduplicated)),
		attribute.Int64("sluice.dead_lettered", int64(b.totals.DeadLettered)), attribute.Int("sluice.rows", b.columns.Rows()))
	for _, request := range links {
		if request.SpanContext.TraceID() == span.SpanContext().TraceID() {
			continue
		}
		_, stored := s.cfg.Tracer.Start(trace.ContextWithSpanContext(ctx, request.SpanContext), "stored", trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithTimestamp(b.born), trace.WithLinks(trace.Link{SpanContext: span.SpanContext()}))
		stored.End()
	}
	return nil
}

// tracedBatch applies changes within a span; see traced.
func (c *changes) tracedBatch(ctx context.Context, batch []flow.Message) error {
	if c.cfg.Tracer == nil {
		return c.applyAll(ctx, batch)
	}
	var links []trace.Link
	for i := range batch {
		if span, ok := spanOfRequest(batch[i].TraceParent); ok && len(links) < maxLinks {
			links = append(links, trace.Link{SpanContext: span})
		}
	}
	parent := ctx
	if len(links) > 0 {
		parent = trace.ContextWithSpanContext(ctx, links[0].SpanContext)
	}
	applying, span := c.cfg.Tracer.Start(parent, "apply changes", trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(links...),
		trace.WithAttributes(attribute.Int("sluice.changes", len(batch))))
	defer span.End()
	if err := c.applyAll(applying, batch); err != nil {
		span.SetStatus(codes.Error, "the changes are not applied yet")
		return &spanError{err, span.SpanContext()}
	}
	return nil
}

// spanError is an error within a span, for the log.
type spanError struct {
	error
	span trace.SpanContext
}

func (e *spanError) Unwrap() error { return e.error }

// spanOf is a context with the span of an error, if any.
func spanOf(err error) context.Context {
	var within *spanError
	if errors.As(err, &within) {
		return trace.ContextWithSpanContext(context.Background(), within.span)
	}
	return context.Background()
}
