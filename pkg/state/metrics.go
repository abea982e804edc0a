package state

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	repeated  prometheus.Counter
	conflicts prometheus.Counter
	seconds   prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return register(reg, prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_state_" + name, Help: help}))
	}
	return &metrics{
		repeated:  counter("changes_repeated_total", "Changes that came again after they had been applied, and were passed over."),
		conflicts: counter("conflicts_total", "Writes of an entry that another writer got ahead of, and that were tried again."),
		seconds: register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "sluice_state_apply_seconds",
			Help:    "How long it took to apply changes that had come together.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		})),
	}
}

// register registers c, or returns what another Store or Applier of this
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
