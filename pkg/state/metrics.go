package state

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are those of an Applier; a Store has none.
type metrics struct {
	skipped   prometheus.Counter
	ignored   prometheus.Counter
	conflicts prometheus.Counter
	seconds   prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	auto := promauto.With(prometheus.WrapRegistererWithPrefix("sluice_state_", reg))
	return &metrics{
		skipped: auto.NewCounter(prometheus.CounterOpts{
			Name: "changes_skipped_total",
			Help: "Changes skipped because they were already applied.",
		}),
		ignored: auto.NewCounter(prometheus.CounterOpts{
			Name: "changes_ignored_total",
			Help: "Conditional changes ignored because the state changed since the condition was met, as after a restore; answered 412.",
		}),
		conflicts: auto.NewCounter(prometheus.CounterOpts{
			Name: "conflicts_total",
			Help: "Writes of an entry that were retried after a conflict with another writer.",
		}),
		seconds: auto.NewHistogram(prometheus.HistogramOpts{
			Name:    "apply_seconds",
			Help:    "Time to apply one batch of changes.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}),
	}
}
