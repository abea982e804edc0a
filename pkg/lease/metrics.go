package lease

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct{ held prometheus.Gauge }

func newMetrics(reg prometheus.Registerer) *metrics {
	return &metrics{held: promauto.With(reg).NewGauge(prometheus.GaugeOpts{
		Name: "sluice_stream_leases_held", Help: "Lanes this process reads.",
	})}
}
