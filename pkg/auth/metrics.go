package auth

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	tokens  prometheus.Gauge
	reloads *prometheus.CounterVec
	stale   *prometheus.GaugeVec
}

// Sources of trust, as label values.
const (
	sourceTokens = "tokens"
	sourceKeys   = "keys"
)

func newMetrics(reg prometheus.Registerer) *metrics {
	auto := promauto.With(prometheus.WrapRegistererWithPrefix("sluice_auth_", reg))
	m := &metrics{
		tokens: auto.NewGauge(prometheus.GaugeOpts{
			Name: "tokens",
			Help: "Static tokens in force, expired ones included.",
		}),
		reloads: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "reloads_total",
			Help: "Times the token file or the JWT keys were read again, by source and outcome.",
		}, []string{"source", "outcome"}),
		stale: auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stale",
			Help: "1 while the newest token file or JWT keys could not be used and older ones are in force.",
		}, []string{"source"}),
	}
	for _, source := range []string{sourceTokens, sourceKeys} {
		m.stale.WithLabelValues(source)
		m.reloads.WithLabelValues(source, "ok")
		m.reloads.WithLabelValues(source, "failed")
	}
	return m
}

// reloaded counts one reading of a source.
func (m *metrics) reloaded(source string, err error) {
	if err != nil {
		m.reloads.WithLabelValues(source, "failed").Inc()
		m.stale.WithLabelValues(source).Set(1)
		return
	}
	m.reloads.WithLabelValues(source, "ok").Inc()
	m.stale.WithLabelValues(source).Set(0)
}
