package supervise

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are those of a Supervisor.
type metrics struct {
	up       prometheus.Gauge
	restarts prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) metrics {
	auto := promauto.With(prometheus.WrapRegistererWithPrefix("sluice_clickhouse_engine_", reg))
	return metrics{
		up: auto.NewGauge(prometheus.GaugeOpts{
			Name: "up",
			Help: "Whether the embedded ClickHouse engine serves: 1, or 0 while it starts or is dead.",
		}),
		restarts: auto.NewCounter(prometheus.CounterOpts{
			Name: "restarts_total",
			Help: "How often the embedded ClickHouse engine died and was started again.",
		}),
	}
}
