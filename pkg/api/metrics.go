package api

import (
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/change"
	"sluice/pkg/record"
)

type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	refusals *prometheus.CounterVec
	inFlight prometheus.Gauge
	panics   prometheus.Counter

	wireBytes, bodyBytes               prometheus.Counter
	records, replayed                  prometheus.Counter
	badTimestamps, unknownMembers      prometheus.Counter
	changes, warnings, waits, setAside *prometheus.CounterVec
	elasticRecords                     prometheus.Counter
	publishSeconds, recordsInRequest   prometheus.Histogram

	connectionsRefused, connectionsClosed prometheus.Counter
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_api_requests_total",
			Help: "Requests answered, by route and class of the status.",
		}, []string{"route", "class"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sluice_api_request_seconds",
			Help:    "Time from the header of a request to its answer, by route.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"route"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_api_refusals_total",
			Help: "Requests refused, by code of the problem.",
		}, []string{"code"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_api_requests_in_flight",
			Help: "Requests being handled.",
		}),
		panics:         counter("sluice_api_panics_total", "Requests that failed because of a defect in Sluice."),
		wireBytes:      counter("sluice_api_wire_bytes_total", "Bytes of bodies as they were sent."),
		bodyBytes:      counter("sluice_api_body_bytes_total", "Bytes of bodies after decompression."),
		records:        counter("sluice_api_records_total", "Records accepted: they are durable in the stream."),
		replayed:       counter("sluice_api_records_replayed_total", "Records acknowledged again because the request was a repeat; nothing new was stored."),
		badTimestamps:  counter("sluice_api_records_bad_timestamp_total", "Records accepted whose timestamp is missing or absurd."),
		unknownMembers: counter("sluice_api_unknown_members_total", "Members of accepted records that are not in the specification; they are kept."),
		elasticRecords: counter("sluice_api_elasticsearch_records_total", "Records accepted where Elasticsearch is spoken; sluice_api_records_total counts them too."),
		setAside: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_api_elasticsearch_set_aside_total",
			Help: "Documents posted where Elasticsearch is spoken that are no records, by code: they are dead letters. One that is sent again counts again.",
		}, []string{"code"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_api_changes_total",
			Help: "Changes of users and dataset fields accepted, by kind: they are durable in the stream.",
		}, []string{"kind"}),
		warnings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_api_change_warnings_total",
			Help: "Things noticed in documents that were accepted, by code: unknown features, members only an admin may set.",
		}, []string{"code"}),
		waits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_api_waits_total",
			Help: "Posts whose client waited until the records were stored, by outcome: stored, or late when that took longer.",
		}, []string{"outcome"}),
		publishSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "sluice_api_publish_seconds",
			Help:    "Time until the stream had a request durable, or refused it.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
		}),
		recordsInRequest: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "sluice_api_request_records",
			Help:    "Records in one accepted request.",
			Buckets: []float64{0, 1, 10, 100, 500, 1000, 5000, 10000, 50000},
		}),
	}
	m.connectionsRefused = counter("sluice_api_connections_refused_total", "Connections refused because their address had as many as it may, all of them busy.")
	m.connectionsClosed = counter("sluice_api_connections_closed_total", "Idle connections closed to make place for new ones.")
	reg.MustRegister(m.connectionsRefused, m.connectionsClosed, m.requests, m.seconds, m.refusals, m.inFlight, m.panics, m.wireBytes, m.bodyBytes,
		m.records, m.replayed, m.badTimestamps, m.unknownMembers, m.changes, m.warnings, m.waits, m.elasticRecords, m.setAside, m.publishSeconds, m.recordsInRequest)
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
		m.refusals.WithLabelValues(string(f.Code))
	}
	return m
}

// accepted counts the records of a request that was answered with OK.
func (m *metrics) accepted(r *record.Request, replayed bool) {
	m.recordsInRequest.Observe(float64(r.Len()))
	if replayed {
		m.replayed.Add(float64(r.Len()))
		return
	}
	m.records.Add(float64(r.Len()))
	m.badTimestamps.Add(float64(r.BadTimestamps()))
	m.unknownMembers.Add(float64(r.UnknownMembers()))
}

// watch shows the budget as a gauge.
func (m *metrics) watch(reg prometheus.Registerer, b *budget) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_api_bodies_in_flight_bytes",
		Help: "Memory held for bodies that are being read or published.",
	}, func() float64 { return float64(b.held()) }))
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
	// No route answers 1xx or 3xx but the 304 of a conditional GET.
	r.classes[3] = m.requests.WithLabelValues(name, "3xx")
	r.classes[0], r.classes[1] = r.classes[5], r.classes[5]
	return r
}

func (r *routeMetrics) answered(status int) { r.classes[min(max(status/100, 0), 5)].Inc() }
