package supervise

import "github.com/prometheus/client_golang/prometheus"

// metrics are those of a Supervisor.
type metrics struct {
	up       prometheus.Gauge
	restarts prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) metrics {
	m := metrics{
		up: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_clickhouse_engine_up",
			Help: "Whether the embedded ClickHouse engine serves: 1, or 0 while it starts or is dead.",
		}),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_clickhouse_engine_restarts_total",
			Help: "How often the embedded ClickHouse engine died and was started again.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.up, m.restarts)
	}
	return m
}
