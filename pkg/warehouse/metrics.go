package warehouse

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	connects prometheus.Counter
	failures *prometheus.CounterVec
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
	}
	for _, class := range classNames {
		m.failures.WithLabelValues(class)
	}
	reg.MustRegister(m.connects, m.failures)
	return m
}
