package ingest

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// weighted is a histogram in which one observation may stand for many, so that
// every record counts at the cost of one observation per message.
type weighted struct {
	desc   *prometheus.Desc
	bounds []float64 // upper bounds of the buckets, ascending

	mu     sync.Mutex
	counts []uint64 // per bucket, and beyond the last
	sum    float64

	examples []prometheus.Exemplar // per bucket the latest, the zero value where there is none; nil until there is one
}

func newWeighted(name, help string, bounds []float64) *weighted {
	return &weighted{desc: prometheus.NewDesc(name, help, nil, nil), bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

// observe counts v so many times.
func (w *weighted) observe(v float64, times int) {
	i, _ := slices.BinarySearch(w.bounds, v)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[i] += uint64(times)
	w.sum += v * float64(times)
}

// example names where a value comes from that is counted.
func (w *weighted) example(v float64, at time.Time, labels prometheus.Labels) {
	i, _ := slices.BinarySearch(w.bounds, v)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.examples == nil {
		w.examples = make([]prometheus.Exemplar, len(w.bounds)+1)
	}
	w.examples[i] = prometheus.Exemplar{Value: v, Labels: labels, Timestamp: at}
}

// Describe implements prometheus.Collector.
func (w *weighted) Describe(ch chan<- *prometheus.Desc) { ch <- w.desc }

// Collect implements prometheus.Collector.
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
	histogram := prometheus.MustNewConstHistogram(w.desc, total, w.sum, below)
	examples := slices.DeleteFunc(slices.Clone(w.examples), func(e prometheus.Exemplar) bool { return e.Labels == nil })
	if len(examples) > 0 {
		histogram = prometheus.MustNewMetricWithExemplars(histogram, examples...)
	}
	ch <- histogram
}
