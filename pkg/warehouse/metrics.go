package warehouse

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	connects prometheus.Counter
	failures *prometheus.CounterVec
	parts    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	auto := promauto.With(prometheus.WrapRegistererWithPrefix("sluice_warehouse_", reg))
	m := &metrics{
		connects: auto.NewCounter(prometheus.CounterOpts{
			Name: "connects_total",
			Help: "Connections for inserts opened to ClickHouse. It stays nearly constant while connections are reused.",
		}),
		failures: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "insert_failures_total",
			Help: "Inserts that ClickHouse did not confirm, by what is done about it: retry, halt, poison or unknown.",
		}, []string{"class"}),
		parts: auto.NewCounter(prometheus.CounterOpts{
			Name: "parts_total",
			Help: "Parts that inserts made in flow.records: one for each month that records of a block fall in. Its rate is what merges in ClickHouse have to keep up with.",
		}),
	}
	for _, class := range classNames {
		m.failures.WithLabelValues(class)
	}
	return m
}
