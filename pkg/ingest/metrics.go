package ingest

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are those of all lanes. A released lane keeps its counters and loses its gauges, which another process now has.
type metrics struct {
	messages, rows, deduplicated, forgotten, void, blocks, bytes, dead *prometheus.CounterVec
	lookups, lookedUp, reread                                          *prometheus.CounterVec
	checkpoint, state, missing, window                                 *prometheus.GaugeVec
	changes                                                            prometheus.Counter
	changesState                                                       prometheus.Gauge

	insertSeconds, blockRows, blockBytes prometheus.Histogram
	freshness                            *weighted
	lag                                  *lag
}

func newMetrics(reg prometheus.Registerer) *metrics {
	reg = prometheus.WrapRegistererWithPrefix("sluice_ingest_", reg)
	auto, byLane := promauto.With(reg), []string{"lane"}
	m := &metrics{
		messages:     auto.NewCounterVec(prometheus.CounterOpts{Name: "messages_total", Help: "Messages read from the lane, including those read again after a failure."}, byLane),
		rows:         auto.NewCounterVec(prometheus.CounterOpts{Name: "rows_total", Help: "Records stored in ClickHouse."}, byLane),
		deduplicated: auto.NewCounterVec(prometheus.CounterOpts{Name: "deduplicated_records_total", Help: "Deduplicated records."}, byLane),
		lookups:      auto.NewCounterVec(prometheus.CounterOpts{Name: "lookups_total", Help: "Deduplication lookups in ClickHouse: at most one per block, none while records are new and roughly in order."}, byLane),
		lookedUp:     auto.NewCounterVec(prometheus.CounterOpts{Name: "lookup_records_total", Help: "Records looked up in ClickHouse."}, byLane),
		forgotten:    auto.NewCounterVec(prometheus.CounterOpts{Name: "forgotten_records_total", Help: "Records not stored because their process instance was forgotten."}, byLane),
		void:         auto.NewCounterVec(prometheus.CounterOpts{Name: "void_records_total", Help: "Records of void entries: they arrived too late, after their api had paused for minutes, and were not acknowledged."}, byLane),
		reread:       auto.NewCounterVec(prometheus.CounterOpts{Name: "reread_messages_total", Help: "Messages read again because a request may be repeated."}, byLane),
		window:       auto.NewGaugeVec(prometheus.GaugeOpts{Name: "deduplication_window_seconds", Help: "Deduplication window, in stream time, of requests whose records have no deduplication key. Below the configured window memory is exhausted."}, byLane),
		blocks:       auto.NewCounterVec(prometheus.CounterOpts{Name: "blocks_total", Help: "Completed blocks. Each creates one or more parts in ClickHouse."}, byLane),
		bytes:        auto.NewCounterVec(prometheus.CounterOpts{Name: "bytes_total", Help: "Memory of completed blocks as columns, in bytes."}, byLane),
		dead:         auto.NewCounterVec(prometheus.CounterOpts{Name: "dead_letters_total", Help: "Records and messages dead-lettered, including those dead-lettered again after a failure."}, byLane),
		changes: auto.NewCounter(prometheus.CounterOpts{
			Name: "changes_total", Help: "Changes of users and dataset fields applied, including those applied again after a failure."}),
		changesState: auto.NewGauge(prometheus.GaugeOpts{
			Name: "changes_state", Help: "State of applying changes of users and dataset fields, in the owner of lane 0: 0 working, 1 retrying after a failure, 2 halted until an operator fixes the cause."}),
		checkpoint: auto.NewGaugeVec(prometheus.GaugeOpts{Name: "checkpoint_sequence", Help: "Stream sequence up to which every message of the lane is stored or dead-lettered."}, byLane),
		state:      auto.NewGaugeVec(prometheus.GaugeOpts{Name: "state", Help: "State of the lane: 0 working, 1 retrying after a failure, 2 halted until an operator fixes the cause."}, byLane),
		missing:    auto.NewGaugeVec(prometheus.GaugeOpts{Name: "table_missing_messages", Help: "Sequence gap between the last stored message and the table's last. Above 0 the table is missing records."}, byLane),

		insertSeconds: auto.NewHistogram(prometheus.HistogramOpts{Name: "insert_seconds", Help: "Duration of successful inserts of the pieces of a block.", Buckets: prometheus.ExponentialBuckets(0.002, 2, 15)}),
		blockRows:     auto.NewHistogram(prometheus.HistogramOpts{Name: "block_rows", Help: "Records per completed block.", Buckets: prometheus.ExponentialBuckets(1, 4, 10)}),
		blockBytes:    auto.NewHistogram(prometheus.HistogramOpts{Name: "block_bytes", Help: "Memory of a completed block as columns, in bytes.", Buckets: prometheus.ExponentialBuckets(1<<10, 4, 10)}),
		freshness: newWeighted("freshness_seconds",
			"Time from the api's receipt of a record until it was queryable; every record counts once.",
			[]float64{0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.5, 2, 5, 10, 30, 60, 300, 1800, 7200}),
		lag: newLag(),
	}
	reg.MustRegister(m.freshness, m.lag)
	return m
}

// laneMetrics are the metrics of one lane.
type laneMetrics struct {
	messages, rows, deduplicated, forgotten, void, blocks, bytes, dead prometheus.Counter
	lookups, lookedUp, reread                                          prometheus.Counter
	checkpoint, state, missing, window                                 prometheus.Gauge

	insertSeconds, blockRows, blockBytes prometheus.Histogram
	freshness                            *weighted
	lag                                  *laneLag
}

func (m *metrics) lane(number int) *laneMetrics {
	n := strconv.Itoa(number)
	return &laneMetrics{
		messages: m.messages.WithLabelValues(n), rows: m.rows.WithLabelValues(n), deduplicated: m.deduplicated.WithLabelValues(n),
		lookups: m.lookups.WithLabelValues(n), lookedUp: m.lookedUp.WithLabelValues(n),
		forgotten: m.forgotten.WithLabelValues(n), void: m.void.WithLabelValues(n), reread: m.reread.WithLabelValues(n), window: m.window.WithLabelValues(n),
		blocks: m.blocks.WithLabelValues(n), bytes: m.bytes.WithLabelValues(n),
		dead:       m.dead.WithLabelValues(n),
		checkpoint: m.checkpoint.WithLabelValues(n), state: m.state.WithLabelValues(n), missing: m.missing.WithLabelValues(n),
		insertSeconds: m.insertSeconds, blockRows: m.blockRows, blockBytes: m.blockBytes,
		freshness: m.freshness, lag: m.lag.lane(n),
	}
}

func (m *metrics) forget(number int) {
	n := strconv.Itoa(number)
	m.checkpoint.DeleteLabelValues(n)
	m.state.DeleteLabelValues(n)
	m.missing.DeleteLabelValues(n)
	m.window.DeleteLabelValues(n)
	m.lag.forget(n)
}

// observe counts a completed block.
func (m *laneMetrics) observe(b *block) {
	now := time.Now()
	for _, a := range b.arrivals {
		m.freshness.observe(now.Sub(a.received).Seconds(), a.records)
	}
	m.blocks.Inc()
	m.bytes.Add(float64(b.bytes()))
	m.blockRows.Observe(float64(b.columns.Rows()))
	m.blockBytes.Observe(float64(b.bytes()))
}

// lag is the age, at a scrape, of the oldest message that was read and is not stored yet. Messages are read in order,
// so none in the backlog is older.
type lag struct {
	desc *prometheus.Desc

	mu    sync.Mutex
	lanes map[string]*laneLag
}

// laneLag is the lag of one lane.
type laneLag struct {
	mu     sync.Mutex
	blocks []time.Time // receive time of the first message of each unfinished block, oldest first
}

func newLag() *lag {
	return &lag{
		desc: prometheus.NewDesc("lag_seconds",
			"Age of the oldest message of the lane that is not stored yet, 0 if none.", []string{"lane"}, nil),
		lanes: map[string]*laneLag{},
	}
}

func (l *lag) lane(n string) *laneLag {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lanes[n] = &laneLag{}
	return l.lanes[n]
}

func (l *lag) forget(n string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.lanes, n)
}

// begin adds a block whose first message was received then.
func (l *laneLag) begin(received time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocks = append(l.blocks, received)
}

// end removes the oldest block, which is complete.
func (l *laneLag) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocks = l.blocks[1:]
}

// again drops all blocks: a new session reads them again.
func (l *laneLag) again() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocks = nil
}

func (l *laneLag) seconds() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.blocks) == 0 {
		return 0
	}
	return max(0, time.Since(l.blocks[0]).Seconds())
}

func (l *lag) Describe(ch chan<- *prometheus.Desc) { ch <- l.desc }

func (l *lag) Collect(ch chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, lane := range l.lanes {
		ch <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, lane.seconds(), n)
	}
}

// weighted is a histogram in which one observation can count many times, so that every record counts at the cost of one observation
// per message.
type weighted struct {
	desc   *prometheus.Desc
	bounds []float64 // upper bounds of the buckets, ascending

	mu     sync.Mutex
	counts []uint64 // per bucket, and above the last
	sum    float64
}

func newWeighted(name, help string, bounds []float64) *weighted {
	return &weighted{desc: prometheus.NewDesc(name, help, nil, nil), bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

// observe counts v this many times.
func (w *weighted) observe(v float64, times int) {
	i, _ := slices.BinarySearch(w.bounds, v)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[i] += uint64(times)
	w.sum += v * float64(times)
}

func (w *weighted) Describe(ch chan<- *prometheus.Desc) { ch <- w.desc }

func (w *weighted) Collect(ch chan<- prometheus.Metric) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var total uint64
	below := make(map[float64]uint64, len(w.bounds))
	for i, bound := range w.bounds {
		total += w.counts[i]
		below[bound] = total
	}
	total += w.counts[len(w.bounds)]
	ch <- prometheus.MustNewConstHistogram(w.desc, total, w.sum, below)
}
