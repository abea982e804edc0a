package ingest

import (
	"slices"
	"sync"

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
	ch <- prometheus.MustNewConstHistogram(w.desc, total, w.sum, below)
}
