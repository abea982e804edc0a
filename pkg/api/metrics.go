package api

import (
	"net"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"sluice/pkg/api/budget"
	"sluice/pkg/change"
	"sluice/pkg/flow"
	"sluice/pkg/record"
)

type metrics struct {
	requests   *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	rejections *prometheus.CounterVec
	rejected   *prometheus.CounterVec
	sources    sourceCounters
	inFlight   prometheus.Gauge
	panics     prometheus.Counter

	wireBytes, bodyBytes                  prometheus.Counter
	records, replayed                     prometheus.Counter
	badTimestamps, unknownMembers         prometheus.Counter
	changes, warnings, waits, deadLetters *prometheus.CounterVec
	elasticRecords                        prometheus.Counter
	excluded                              *prometheus.CounterVec
	publishSeconds, recordsInRequest      prometheus.Histogram

	connectionsRejected, connectionsClosed prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	auto := promauto.With(prometheus.WrapRegistererWithPrefix("sluice_api_", reg))
	m := &metrics{
		requests: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "requests_total",
			Help: "Requests answered, by route and class of the status.",
		}, []string{"route", "class"}),
		seconds: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "request_seconds",
			Help:    "Time from the header of a request to its answer, by route.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"route"}),
		rejections: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "rejections_total",
			Help: "Requests rejected, by code of the problem.",
		}, []string{"code"}),
		rejected: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "rejected_clients_total",
			Help: "Requests rejected for the client's token, rights, rate, or body, by configured subject (else unknown) and code. Addresses: /rejected of the ops port.",
		}, []string{"subject", "code"}),
		sources: sourceCounters{of: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "source_posts_total",
			Help: "Posts accepted by source, repeats included; sources beyond the first 200 of a process count as other.",
		}, []string{"source"})},
		inFlight: auto.NewGauge(prometheus.GaugeOpts{
			Name: "requests_in_flight",
			Help: "Requests being handled.",
		}),
		panics:              auto.NewCounter(prometheus.CounterOpts{Name: "panics_total", Help: "Requests that failed by a panic."}),
		wireBytes:           auto.NewCounter(prometheus.CounterOpts{Name: "wire_bytes_total", Help: "Bytes of bodies as sent."}),
		bodyBytes:           auto.NewCounter(prometheus.CounterOpts{Name: "body_bytes_total", Help: "Bytes of bodies after decompression."}),
		records:             auto.NewCounter(prometheus.CounterOpts{Name: "records_total", Help: "Records accepted, durable in the stream."}),
		replayed:            auto.NewCounter(prometheus.CounterOpts{Name: "records_replayed_total", Help: "Records of acknowledged repeated requests; nothing new was stored."}),
		badTimestamps:       auto.NewCounter(prometheus.CounterOpts{Name: "records_bad_timestamp_total", Help: "Records accepted whose timestamp is missing or out of range."}),
		unknownMembers:      auto.NewCounter(prometheus.CounterOpts{Name: "unknown_members_total", Help: "Members of accepted records that are not in the specification; they are kept."}),
		elasticRecords:      auto.NewCounter(prometheus.CounterOpts{Name: "elasticsearch_records_total", Help: "Records accepted by Elasticsearch's protocol; also in sluice_api_records_total."}),
		connectionsRejected: auto.NewCounter(prometheus.CounterOpts{Name: "connections_rejected_total", Help: "Connections rejected because all connections allowed to their address were busy."}),
		connectionsClosed:   auto.NewCounter(prometheus.CounterOpts{Name: "connections_closed_total", Help: "Idle connections closed for new ones."}),
		excluded: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "records_excluded_total",
			Help: "Records excluded by the rules of their source in the token file, by source and rule; not counted as accepted. A resent request counts again.",
		}, []string{"source", "rule"}),
		deadLetters: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "elasticsearch_dead_letters_total",
			Help: "Documents posted by Elasticsearch's protocol that are not records and were dead-lettered, by code. A resent one counts again.",
		}, []string{"code"}),
		changes: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "changes_total",
			Help: "Changes of users and dataset fields accepted, durable in the stream, by kind.",
		}, []string{"kind"}),
		warnings: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "change_warnings_total",
			Help: "Warnings about accepted documents, by code: unknown features, members that only an admin may set.",
		}, []string{"code"}),
		waits: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "waits_total",
			Help: "Posts that waited until their records were stored, by outcome: stored, or late after the wait.",
		}, []string{"outcome"}),
		publishSeconds: auto.NewHistogram(prometheus.HistogramOpts{
			Name:    "publish_seconds",
			Help:    "Time until a request was durable in the stream, or rejected.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
		}),
		recordsInRequest: auto.NewHistogram(prometheus.HistogramOpts{
			Name:    "request_records",
			Help:    "Records in one accepted request.",
			Buckets: []float64{0, 1, 10, 100, 500, 1000, 5000, 10000, 50000},
		}),
	}
	for _, kind := range []change.Kind{change.UserPatched, change.FieldPut, change.FieldDeleted} {
		m.changes.WithLabelValues(string(kind))
	}
	for _, outcome := range []string{"stored", "late"} {
		m.waits.WithLabelValues(outcome)
	}
	for _, code := range []string{change.UnknownFeature, change.AuthorityIgnored} {
		m.warnings.WithLabelValues(code)
	}
	for _, f := range failures {
		m.rejections.WithLabelValues(string(f.Code))
	}
	return m
}

// leftOut counts the records that a token's rules exclude.
func (m *metrics) leftOut(who flow.Caller, r *record.Request) {
	for i, n := range r.ExcludedBy() {
		if n > 0 {
			m.excluded.WithLabelValues(who.Source, who.Exclude[i].String()).Add(float64(n))
		}
	}
}

// sourceCounters count by source, up to maxSources of them.
type sourceCounters struct {
	of *prometheus.CounterVec

	mu    sync.Mutex
	known map[string]prometheus.Counter
}

// maxSources bounds the label: a JWT may name any source.
const maxSources = 200

func (c *sourceCounters) add(source string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	counter, ok := c.known[source]
	if !ok {
		if len(c.known) >= maxSources {
			source = "other"
		}
		counter = c.of.WithLabelValues(source)
		if len(c.known) < maxSources {
			if c.known == nil {
				c.known = map[string]prometheus.Counter{}
			}
			c.known[source] = counter
		}
	}
	counter.Inc()
}

// accepted counts the records of an acknowledged request.
func (m *metrics) accepted(source string, r *record.Request, replayed bool) {
	m.sources.add(source)
	m.recordsInRequest.Observe(float64(r.Len()))
	if replayed {
		m.replayed.Add(float64(r.Len()))
		return
	}
	m.records.Add(float64(r.Len()))
	m.badTimestamps.Add(float64(r.BadTimestamps()))
	m.unknownMembers.Add(float64(r.UnknownMembers()))
}

// watch registers the gauge of the budget.
func (m *metrics) watch(reg prometheus.Registerer, b *budget.Budget) {
	promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_api_bodies_in_flight_bytes",
		Help: "Memory held for bodies that are being read or published.",
	}, func() float64 { return float64(b.Held()) })
}

// routeMetrics are the metrics of one route, looked up once.
type routeMetrics struct {
	classes [6]prometheus.Counter // by the first digit of the status
	seconds prometheus.Observer
}

func (m *metrics) route(name string) *routeMetrics {
	r := &routeMetrics{seconds: m.seconds.WithLabelValues(name)}
	for i, class := range []string{"2xx", "4xx", "5xx"} {
		r.classes[[]int{2, 4, 5}[i]] = m.requests.WithLabelValues(name, class)
	}
	// The only 1xx or 3xx is the 304 of a conditional GET.
	r.classes[3] = m.requests.WithLabelValues(name, "3xx")
	r.classes[0], r.classes[1] = r.classes[5], r.classes[5]
	return r
}

func (r *routeMetrics) answered(status int) { r.classes[min(max(status/100, 0), 5)].Inc() }

// traceParent returns the W3C trace context of a request, empty if absent or malformed.
func traceParent(h http.Header) string {
	values := h["Traceparent"]
	if len(values) != 1 || len(values[0]) != 55 {
		return ""
	}
	for i, c := range []byte(values[0]) {
		switch {
		case i == 2 || i == 35 || i == 52:
			if c != '-' {
				return ""
			}
		case c < '0' || c > 'f' || c > '9' && c < 'a':
			return ""
		}
	}
	return values[0]
}

// addressOf is the peer address of a request; behind a proxy, the proxy's: any client can
// forge headers.
func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
