package lease

import "github.com/prometheus/client_golang/prometheus"

type metrics struct{ held prometheus.Gauge }

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{held: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "sluice_stream_leases_held", Help: "Lanes this process reads.",
	})}
	reg.MustRegister(m.held)
	return m
}
