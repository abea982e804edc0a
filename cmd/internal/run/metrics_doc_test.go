package run_test

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"sluice/cmd/internal/run"
	"sluice/pkg/api"
	"sluice/pkg/auth"
	"sluice/pkg/console"
	"sluice/pkg/dial"
	"sluice/pkg/embedded/clickhouse/supervise"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/ingest"
	"sluice/pkg/lease"
	"sluice/pkg/ops"
	"sluice/pkg/state"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

var update = flag.Bool("update", false, "write docs/metrics.md instead of comparing it")

const metricsPage = "../../../docs/metrics.md"

// TestMetricsPageIsComplete compares docs/metrics.md with the registered metrics;
// `go test ./cmd/internal/run -run MetricsPage -update` writes it.
func TestMetricsPageIsComplete(t *testing.T) {
	want := page(describe(t), alertsByMetric(t))
	if *update {
		fatal.If(t, os.WriteFile(metricsPage, []byte(want), 0o644))
		return
	}
	got, err := os.ReadFile(metricsPage)
	fatal.If(t, err)
	expect.Equal(t, "docs/metrics.md is not fresh, run go test ./cmd/internal/run -run MetricsPage -update", want, string(got))
}

type metric struct{ name, help, labels string }

// describe builds every part with metrics and reads their descriptions from the
// registry.
func describe(t *testing.T) []metric {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	opsServer := ops.New(ops.Config{}, log)
	reg := opsServer.Registry()

	server := natstest.Start(t)
	nc, err := dial.Connect(dial.Config{URL: server.URL, Name: "test"}, log, reg)
	fatal.If(t, err)
	t.Cleanup(nc.Close)
	lanes, err := stream.Open(t.Context(), nc, stream.Config{}, log, reg)
	fatal.If(t, err)
	tokens := filepath.Join(t.TempDir(), "tokens.yaml")
	fatal.If(t, os.WriteFile(tokens, []byte("[]"), 0o600))
	authenticator, err := auth.New(auth.Config{Tokens: tokens}, log, reg)
	fatal.If(t, err)
	store := state.New(lanes.State)
	publisher := stream.NewPublisher(lanes)
	_, err = api.New(api.Config{}, api.Deps{Auth: authenticator, Stream: publisher, Changes: publisher, Last: lanes, State: store}, log, reg)
	fatal.If(t, err)
	db, err := warehouse.Open(warehouse.Config{}, log, reg)
	fatal.If(t, err)
	t.Cleanup(func() { db.Close() })
	state.NewApplier(store, reg)
	state.NewSweeper(state.SweepConfig{}, store, lanes, log, reg)
	lease.New(lease.Config{}, log, reg)
	ingest.New(ingest.Config{}, ingest.Deps{}, log, reg)
	_, err = console.New(console.Config{}, console.Deps{Metrics: reg}, log)
	fatal.If(t, err)
	supervise.New(supervise.Config{Metrics: reg}, log)
	run.WatchDisk(reg, t.TempDir())

	descriptions := make(chan *prometheus.Desc)
	go func() { reg.Describe(descriptions); close(descriptions) }()
	parts := regexp.MustCompile(`fqName: "(sluice_[a-z0-9_]+)", help: "(.*)", unit: ".*", constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)
	var all []metric
	for d := range descriptions {
		if m := parts.FindStringSubmatch(d.String()); m != nil {
			all = append(all, metric{m[1], strings.ReplaceAll(m[2], `\"`, `"`), m[3]})
		}
	}
	slices.SortFunc(all, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	all = slices.Compact(all)
	fatal.When(t, len(all) < 60, "%d metrics were described", len(all))
	return all
}

// alertsByMetric returns the names of the alerts that use a metric.
func alertsByMetric(t *testing.T) func(name string) []string {
	t.Helper()
	content, err := os.ReadFile("../../../deploy/prometheus/alerts.yml")
	fatal.If(t, err)
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	fatal.If(t, yaml.Unmarshal(content, &file))
	return func(name string) (alerts []string) {
		used := regexp.MustCompile(`\b` + name + `(_bucket|_sum|_count)?\b`)
		for _, group := range file.Groups {
			for _, rule := range group.Rules {
				if used.MatchString(rule.Expr) {
					alerts = append(alerts, rule.Alert)
				}
			}
		}
		return alerts
	}
}

func page(metrics []metric, alerts func(string) []string) string {
	var b strings.Builder
	b.WriteString(`# Metrics

For operators: the metrics of api, ingester, and console at /metrics of their ops ports; ` + "`sluice up`" + ` has
all on one. The console counts open work (open, overdue, stuck) once a minute. Units are in the names: seconds, bytes; what ends in _total only
ever grows. The alerts are in [alerts.yml](../deploy/prometheus/alerts.yml).
This page is written from the sources by

    go test ./cmd/internal/run -run MetricsPage -update
`)
	room := ""
	for _, m := range metrics {
		if part := strings.Split(m.name, "_")[1]; part != room {
			room = part
			fmt.Fprintf(&b, "\n## %s\n\n| metric | labels | meaning | alerts |\n|---|---|---|---|\n", room)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, strings.ReplaceAll(m.labels, ",", ", "), m.help, strings.Join(alerts(m.name), ", "))
	}
	return b.String()
}
