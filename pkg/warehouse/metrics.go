package warehouse

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	connects prometheus.Counter
	failures *prometheus.CounterVec
	parts    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		connects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_warehouse_connects_total",
			Help: "Connections for inserts opened to ClickHouse. It stays nearly constant while connections are reused.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_warehouse_insert_failures_total",
			Help: "Inserts that ClickHouse did not confirm, by what is done about it: retry, halt, poison or unknown.",
		}, []string{"class"}),
		parts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_warehouse_parts_total",
			Help: "Parts that inserts made in flow.records: one for each month that records of a block fall in. Its rate is what merges in ClickHouse have to keep up with.",
		}),
	}
	for _, class := range classNames {
		m.failures.WithLabelValues(class)
	}
	reg.MustRegister(m.connects, m.failures, m.parts)
	return m
}
