package state

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are those of who writes: a Store that is only read has none.
type metrics struct {
	repeated  prometheus.Counter
	conflicts prometheus.Counter
	seconds   prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	auto := promauto.With(prometheus.WrapRegistererWithPrefix("sluice_state_", reg))
	return &metrics{
		repeated: auto.NewCounter(prometheus.CounterOpts{
			Name: "changes_repeated_total",
			Help: "Changes that came again after they had been applied, and were passed over.",
		}),
		conflicts: auto.NewCounter(prometheus.CounterOpts{
			Name: "conflicts_total",
			Help: "Writes of an entry that another writer got ahead of, and that were tried again.",
		}),
		seconds: auto.NewHistogram(prometheus.HistogramOpts{
			Name:    "apply_seconds",
			Help:    "How long it took to apply changes that had come together.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}),
	}
}
