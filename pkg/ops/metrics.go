package ops

import (
	"context"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// newRegistry makes a registry with the metrics of the process.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return reg
}

// newReady makes the readiness metric, evaluated at every scrape.
func newReady(h *health, timeout time.Duration) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_ready", Help: "1 while the process is ready, else 0; /readyz lists the failed checks.",
	}, func() float64 {
		if len(h.missing(context.Background(), timeout)) > 0 {
			return 0
		}
		return 1
	})
}

// newBuild makes the version metric.
func newBuild(version, commit string) prometheus.Collector {
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "sluice_build_info", Help: "1, with the version and the commit of the program, and the Go it was built with.",
	}, []string{"version", "commit", "go"})
	build.WithLabelValues(version, commit, runtime.Version()).Set(1)
	return build
}

// metricsHandler serves what could be gathered even if a collector fails.
func metricsHandler(reg *prometheus.Registry) http.Handler {
	return promhttp.InstrumentMetricHandler(reg, promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError,
		Registry:      reg,
	}))
}
