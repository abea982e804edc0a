package supervise

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	up       prometheus.Gauge
	restarts prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) metrics {
	auto := promauto.With(prometheus.WrapRegistererWithPrefix("sluice_clickhouse_engine_", reg))
	return metrics{
		up: auto.NewGauge(prometheus.GaugeOpts{
			Name: "up",
			Help: "1 while the embedded ClickHouse engine answers; 0 while it starts, is dead, or has not answered for 4 s.",
		}),
		restarts: auto.NewCounter(prometheus.CounterOpts{
			Name: "restarts_total",
			Help: "Restarts of the embedded ClickHouse engine after it died.",
		}),
	}
}

func (m metrics) setUp(up bool) {
	m.up.Set(0)
	if up {
		m.up.Set(1)
	}
}
