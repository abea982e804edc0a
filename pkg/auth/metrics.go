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

// Values of the label source.
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
			Help: "Reloads of the token file or the JWT keys, by source and outcome.",
		}, []string{"source", "outcome"}),
		stale: auto.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stale",
			Help: "1 while the token file or the JWT keys are invalid and older ones stay in force.",
		}, []string{"source"}),
	}
	for _, source := range []string{sourceTokens, sourceKeys} {
		m.stale.WithLabelValues(source)
		m.reloads.WithLabelValues(source, "ok")
		m.reloads.WithLabelValues(source, "failed")
	}
	return m
}

// reloaded counts one reload of a source.
func (m *metrics) reloaded(source string, err error) {
	if err != nil {
		m.reloads.WithLabelValues(source, "failed").Inc()
		m.stale.WithLabelValues(source).Set(1)
		return
	}
	m.reloads.WithLabelValues(source, "ok").Inc()
	m.stale.WithLabelValues(source).Set(0)
}
