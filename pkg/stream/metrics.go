package stream

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"sluice/pkg/record"
)

type metrics struct {
	publishes      *prometheus.CounterVec
	seconds        prometheus.Histogram
	messages       prometheus.Counter
	records        prometheus.Counter
	bytes          prometheus.Counter
	requests       prometheus.Histogram
	retries        *prometheus.CounterVec
	readMsgs       *prometheus.CounterVec
	readBytes      *prometheus.CounterVec
	followed       prometheus.Counter
	reopens        prometheus.Counter
	laneBytes      *prometheus.GaugeVec
	laneMax        *prometheus.GaugeVec
	laneMsgs       *prometheus.GaugeVec
	lagMessages    *prometheus.GaugeVec
	lagBytes       *prometheus.GaugeVec
	changesWaiting prometheus.Gauge
	dead           *prometheus.CounterVec
	deadLetters    prometheus.Gauge
	deadBytes      prometheus.Gauge
	deadMax        prometheus.Gauge
	purged         *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	lane := []string{"lane"}
	return &metrics{
		publishes:      counters(reg, "sluice_stream_publishes_total", "Submissions by what became of them: stored, replayed, full, busy, unavailable, held, key_reused, too_large or failed.", "outcome"),
		seconds:        histogram(reg, "sluice_stream_publish_seconds", "Seconds from a submission to its answer, waiting for the entry before it included.", prometheus.ExponentialBuckets(0.00025, 2, 16)),
		messages:       counter(reg, "sluice_stream_messages_total", "Messages made durable in the lanes: entries of requests, and changes."),
		records:        counter(reg, "sluice_stream_records_total", "Records made durable in the lanes."),
		bytes:          counter(reg, "sluice_stream_bytes_total", "Bytes of message bodies made durable in the lanes."),
		requests:       histogram(reg, "sluice_stream_entry_requests", "Requests, or pieces of them, that shared one entry.", prometheus.ExponentialBuckets(1, 2, 10)),
		retries:        counters(reg, "sluice_stream_retries_total", "Publishes that had to be tried again, by reason.", "reason"),
		readMsgs:       counters(reg, "sluice_stream_read_messages_total", "Messages read back from a lane, repeats after a restart included.", lane...),
		readBytes:      counters(reg, "sluice_stream_read_bytes_total", "Bytes of message bodies read back from a lane.", lane...),
		followed:       counter(reg, "sluice_stream_followed_entries_total", "Entries whose tables an api has read because another one was sending, to answer who repeats a request elsewhere."),
		reopens:        counter(reg, "sluice_stream_reader_reopens_total", "Times a reader had to be opened again after an interruption."),
		laneBytes:      gauges(reg, "sluice_stream_lane_bytes", "Bytes a lane holds on disk.", lane...),
		laneMax:        gauges(reg, "sluice_stream_lane_max_bytes", "Bytes a lane may hold before it refuses more.", lane...),
		laneMsgs:       gauges(reg, "sluice_stream_lane_messages", "Messages a lane holds, stored ones kept as history included.", lane...),
		lagMessages:    gauges(reg, "sluice_stream_lag_messages", "Messages of a lane that are not stored yet.", lane...),
		lagBytes:       gauges(reg, "sluice_stream_lag_bytes", "Bytes of a lane that are not stored yet, estimated by its mean message size.", lane...),
		changesWaiting: gauge(reg, "sluice_stream_changes_waiting", "Changes of users and dataset fields that are not applied yet."),
		dead:           counters(reg, "sluice_stream_dead_letters_total", "Records and messages set aside, by code.", "code"),
		deadLetters:    gauge(reg, "sluice_stream_dead_letters", "Dead letters that are kept, until they are replayed or dropped."),
		deadBytes:      gauge(reg, "sluice_stream_dead_bytes", "Bytes of dead letters on disk."),
		deadMax:        gauge(reg, "sluice_stream_dead_max_bytes", "Bytes dead letters may take: when they do, a lane that has to set something aside halts."),
		purged:         counters(reg, "sluice_stream_purged_messages_total", "Stored messages removed from a lane.", lane...),
	}
}

func counter(reg prometheus.Registerer, name, help string) prometheus.Counter {
	return register(reg, prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help}))
}

func counters(reg prometheus.Registerer, name, help string, labels ...string) *prometheus.CounterVec {
	return register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

func gauge(reg prometheus.Registerer, name, help string) prometheus.Gauge {
	return register(reg, prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help}))
}

func gauges(reg prometheus.Registerer, name, help string, labels ...string) *prometheus.GaugeVec {
	return register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}

func histogram(reg prometheus.Registerer, name, help string, buckets []float64) prometheus.Histogram {
	return register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}))
}

// register registers c, or returns what another connection or Stream of this
// process has registered under the same name: they count together.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	err := reg.Register(c)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if same, ok := already.ExistingCollector.(C); ok {
			return same
		}
	}
	if err != nil {
		panic(err) // two different metrics of one name: a mistake in the program
	}
	return c
}

// published counts a submission or a change by what became of it, and ends its span.
func (m *metrics) published(span trace.Span, outcome string, took time.Duration) {
	m.publishes.WithLabelValues(outcome).Inc()
	if span == nil {
		m.seconds.Observe(took.Seconds())
		return
	}
	span.SetAttributes(attribute.String("sluice.outcome", outcome))
	span.End()
	sc := span.SpanContext()
	if !sc.IsSampled() {
		m.seconds.Observe(took.Seconds())
		return
	}
	m.seconds.(prometheus.ExemplarObserver).ObserveWithExemplar(took.Seconds(),
		prometheus.Labels{"trace_id": sc.TraceID().String(), "span_id": sc.SpanID().String()})
}

// publishing begins the span of a submission, or of a change when source is empty: from
// when it comes until it is durable, waiting for the entry before it included. The
// span is nil where nothing is traced.
func (s *Stream) publishing(ctx context.Context, source string) (context.Context, trace.Span) {
	if s.cfg.Tracer == nil {
		return ctx, nil
	}
	return s.cfg.Tracer.Start(ctx, "publish", trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(attribute.String("messaging.system", "nats"), attribute.String("sluice.source", source)))
}

// mostLinks bounds the requests that a span names of those that share it.
const mostLinks = 128

// sending begins the span of an entry on its way: in the trace of its first request
// that is kept, with links to all of them.
func (g *gatherer) sending(ctx context.Context) (context.Context, trace.Span) {
	if g.p.stream.cfg.Tracer == nil {
		return ctx, nil
	}
	var links []trace.Link
	for _, pc := range g.pieces {
		if id, span, ok := record.TraceSpan(pc.message.TraceParent); ok && len(links) < mostLinks {
			links = append(links, trace.Link{SpanContext: trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: trace.FlagsSampled})})
		}
	}
	if len(links) == 0 {
		return ctx, nil
	}
	lane := g.pieces[0].lane
	return g.p.stream.cfg.Tracer.Start(trace.ContextWithSpanContext(ctx, links[0].SpanContext), "send "+lane.Stream,
		trace.WithSpanKind(trace.SpanKindClient), trace.WithLinks(links...), trace.WithAttributes(
			attribute.String("messaging.system", "nats"),
			attribute.String("messaging.destination.name", lane.Stream),
			attribute.Int("messaging.batch.message_count", len(g.pieces)),
			attribute.Int("messaging.message.body.size", len(g.entry.Body())),
		))
}

// endSpan ends a span, if there is one.
func endSpan(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// parentOf is the trace context that travels with a message; empty when the span is
// not kept.
func parentOf(span trace.Span) string {
	if span == nil || !span.SpanContext().IsSampled() {
		return ""
	}
	return record.TraceParent(span.SpanContext().TraceID(), span.SpanContext().SpanID())
}
