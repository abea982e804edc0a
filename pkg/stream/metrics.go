package stream

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
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
	reopens        prometheus.Counter
	laneBytes      *prometheus.GaugeVec
	laneMax        *prometheus.GaugeVec
	laneMsgs       *prometheus.GaugeVec
	lagMessages    *prometheus.GaugeVec
	lagBytes       *prometheus.GaugeVec
	changesBacklog prometheus.Gauge
	dead           *prometheus.CounterVec
	deadLetters    prometheus.Gauge
	deadWritten    *prometheus.GaugeVec // without label: no value before the first look-up
	deadBytes      prometheus.Gauge
	deadMax        prometheus.Gauge
	purged         *prometheus.CounterVec

	serverUp, storeBytes, storeMax *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	auto := promauto.With(prometheus.WrapRegistererWithPrefix("sluice_stream_", reg))
	servers := promauto.With(prometheus.WrapRegistererWithPrefix("sluice_nats_", reg))
	return &metrics{
		publishes:      auto.NewCounterVec(prometheus.CounterOpts{Name: "publishes_total", Help: "Submissions by outcome: stored, replayed, full, busy, unavailable, held, key_reused, too_large or failed."}, []string{"outcome"}),
		seconds:        auto.NewHistogram(prometheus.HistogramOpts{Name: "publish_seconds", Help: "Seconds from a submission to its acknowledgement, including the wait for the entry before it.", Buckets: prometheus.ExponentialBuckets(0.00025, 2, 16)}),
		messages:       auto.NewCounter(prometheus.CounterOpts{Name: "messages_total", Help: "Messages made durable in the lanes: entries of requests, and changes."}),
		records:        auto.NewCounter(prometheus.CounterOpts{Name: "records_total", Help: "Records made durable in the lanes."}),
		bytes:          auto.NewCounter(prometheus.CounterOpts{Name: "bytes_total", Help: "Bytes of message bodies made durable in the lanes."}),
		requests:       auto.NewHistogram(prometheus.HistogramOpts{Name: "entry_requests", Help: "Requests, or chunks of them, that shared one entry.", Buckets: prometheus.ExponentialBuckets(1, 2, 10)}),
		retries:        auto.NewCounterVec(prometheus.CounterOpts{Name: "retries_total", Help: "Retried publishes, by reason."}, []string{"reason"}),
		readMsgs:       auto.NewCounterVec(prometheus.CounterOpts{Name: "read_messages_total", Help: "Messages read from a lane, including those read again after a restart."}, []string{"lane"}),
		readBytes:      auto.NewCounterVec(prometheus.CounterOpts{Name: "read_bytes_total", Help: "Bytes of message bodies read from a lane."}, []string{"lane"}),
		reopens:        auto.NewCounter(prometheus.CounterOpts{Name: "reader_reopens_total", Help: "Reopened readers of lanes after an interruption."}),
		laneBytes:      auto.NewGaugeVec(prometheus.GaugeOpts{Name: "lane_bytes", Help: "Bytes a lane holds on disk."}, []string{"lane"}),
		laneMax:        auto.NewGaugeVec(prometheus.GaugeOpts{Name: "lane_max_bytes", Help: "Size limit of a lane in bytes."}, []string{"lane"}),
		laneMsgs:       auto.NewGaugeVec(prometheus.GaugeOpts{Name: "lane_messages", Help: "Messages a lane holds, stored ones kept as history included."}, []string{"lane"}),
		lagMessages:    auto.NewGaugeVec(prometheus.GaugeOpts{Name: "lag_messages", Help: "Messages of a lane that are not stored yet."}, []string{"lane"}),
		lagBytes:       auto.NewGaugeVec(prometheus.GaugeOpts{Name: "lag_bytes", Help: "Bytes of a lane that are not stored yet, estimated by its mean message size."}, []string{"lane"}),
		changesBacklog: auto.NewGauge(prometheus.GaugeOpts{Name: "changes_backlog", Help: "Changes of users and dataset fields that are not applied yet."}),
		dead:           auto.NewCounterVec(prometheus.CounterOpts{Name: "dead_letters_total", Help: "Records, messages, and posted documents dead-lettered by this process, by code."}, []string{"code"}),
		deadLetters:    auto.NewGauge(prometheus.GaugeOpts{Name: "dead_letters", Help: "Dead letters not yet replayed or dropped."}),
		deadWritten:    auto.NewGaugeVec(prometheus.GaugeOpts{Name: "dead_letters_written", Help: "Dead letters ever written, by any program, including those replayed or dropped."}, nil),
		deadBytes:      auto.NewGauge(prometheus.GaugeOpts{Name: "dead_bytes", Help: "Bytes of dead letters on disk."}),
		deadMax:        auto.NewGauge(prometheus.GaugeOpts{Name: "dead_max_bytes", Help: "Size limit of dead letters in bytes: once seven eighths are used, a lane that has to dead-letter a record halts."}),
		purged:         auto.NewCounterVec(prometheus.CounterOpts{Name: "purged_messages_total", Help: "Stored messages removed from a lane."}, []string{"lane"}),

		serverUp:   servers.NewGaugeVec(prometheus.GaugeOpts{Name: "up", Help: "1 if a NATS server of --nats-monitors is healthy, else 0."}, []string{"server"}),
		storeBytes: servers.NewGaugeVec(prometheus.GaugeOpts{Name: "store_bytes", Help: "Disk usage of a NATS server's JetStream in bytes."}, []string{"server"}),
		storeMax:   servers.NewGaugeVec(prometheus.GaugeOpts{Name: "store_max_bytes", Help: "Disk limit of a NATS server's JetStream in bytes."}, []string{"server"}),
	}
}

// published counts a submission or a change by outcome.
func (m *metrics) published(outcome string, took time.Duration) {
	m.publishes.WithLabelValues(outcome).Inc()
	m.seconds.Observe(took.Seconds())
}

// durable counts a batch that became durable.
func (m *metrics) durable(b *batch) {
	m.messages.Inc()
	m.requests.Observe(float64(b.chunks))
	m.bytes.Add(float64(len(b.entry.Body())))
	m.records.Add(float64(b.records))
}
