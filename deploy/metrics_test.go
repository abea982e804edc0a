package deploy_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/fatal"
)

// TestAlertsAndDashboardsUseMetricsThatExist looks up every name in an expression.
func TestAlertsAndDashboardsUseMetricsThatExist(t *testing.T) {
	known := metricNames(t)
	for where, expr := range expressions(t) {
		names := metricsOf(expr)
		if len(names) == 0 {
			t.Errorf("%s uses no metric: %s", where, expr)
		}
		for _, name := range names {
			if !known(name) {
				t.Errorf("%s uses %s, which no program exports", where, name)
			}
		}
	}
	if known("sluice_api_no_such_thing_total") {
		t.Error("an unknown name counts as a metric")
	}
}

func TestAlertsSayWhatToDo(t *testing.T) {
	for _, rule := range alerts(t) {
		if rule.Alert == "" || rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
			t.Errorf("alert %q has the annotations %q", rule.Alert, rule.Annotations)
		}
		if s := rule.Labels["severity"]; s != "critical" && s != "warning" && rule.Alert != "Watchdog" {
			t.Errorf("alert %s has severity %q", rule.Alert, s)
		}
	}
}

// TestPrometheusScrapesTheServicesOfCompose: a target that is not a service, or has another
// port, would always be down.
func TestPrometheusScrapesTheServicesOfCompose(t *testing.T) {
	var config struct {
		Rules []string `yaml:"rule_files"`
		Jobs  []struct {
			Name   string `yaml:"job_name"`
			Static []struct {
				Targets []string `yaml:"targets"`
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	readYAML(t, "prometheus/prometheus.yml", &config)
	targets := map[string]string{}
	for _, job := range config.Jobs {
		for _, static := range job.Static {
			for _, target := range static.Targets {
				targets[job.Name] = target
			}
		}
	}
	services := compose(t).Services
	for _, name := range []string{"api", "ingester", "console"} {
		_, port, _ := strings.Cut(services[name].Environment["SLUICE_OPS"], ":")
		if want := name + ":" + port; port == "" || targets[name] != want {
			t.Errorf("%s is scraped at %q, its metrics are at %q", name, targets[name], want)
		}
	}
	if !strings.Contains(string(read(t, "clickhouse/config.d/sluice.xml")), "<port>9363</port>") || targets["clickhouse"] != "clickhouse:9363" {
		t.Errorf("ClickHouse is scraped at %q", targets["clickhouse"])
	}
	for _, rules := range config.Rules {
		read(t, filepath.Join("prometheus", rules))
	}
}

type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func alerts(t *testing.T) []rule {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	readYAML(t, "prometheus/alerts.yml", &file)
	var all []rule
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) < 10 {
		t.Fatalf("%d alerts were read", len(all))
	}
	return all
}

// expressions are those of the alerts and dashboards, by their place.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, rule := range alerts(t) {
		all["alert "+rule.Alert] = rule.Expr
	}
	for _, file := range dashboards {
		var dashboard struct {
			Panels []struct {
				Title   string `json:"title"`
				Type    string `json:"type"`
				Targets []struct {
					RefID string `json:"refId"`
					Expr  string `json:"expr"`
				} `json:"targets"`
			} `json:"panels"`
		}
		readJSON(t, "grafana/dashboards/"+file, &dashboard)
		before := len(all)
		for _, panel := range dashboard.Panels {
			if panel.Type != "row" && len(panel.Targets) == 0 {
				t.Errorf("%s: panel %s shows nothing", file, panel.Title)
			}
			for _, target := range panel.Targets {
				all[file+", panel "+panel.Title+" "+target.RefID] = target.Expr
			}
		}
		if len(all) < before+10 {
			t.Fatalf("%s: %d expressions were read", file, len(all)-before)
		}
	}
	return all
}

// dashboards are the home dashboard, one for each part, and one for process owners.
var dashboards = []string{"sluice.json", "api.json", "lanes.json", "clickhouse.json", "processes.json", "work.json"}

// TestGrafanaFindsTheDashboards: each has a unique uid and title.
func TestGrafanaFindsTheDashboards(t *testing.T) {
	names := map[string]string{}
	files, err := filepath.Glob("grafana/dashboards/*")
	if err != nil || len(files) != len(dashboards) {
		t.Errorf("dashboards %q, %v; want %q", files, err, dashboards)
	}
	for _, file := range files {
		var dashboard struct {
			UID, Title string
			Tags       []string
		}
		readJSON(t, file, &dashboard)
		for _, name := range []string{dashboard.UID, dashboard.Title} {
			if other, taken := names[name]; taken && other != file || name == "" {
				t.Errorf("%s and %s are both called %q", other, file, name)
			}
			names[name] = file
		}
		if !slices.Contains(dashboard.Tags, "sluice") {
			t.Errorf("%s is not linked from the others: it has the tags %q", file, dashboard.Tags)
		}
	}
}

var (
	inLabels   = regexp.MustCompile(`\{[^}]*\}|\b(by|on|ignoring|group_left|group_right)\s*\([^)]*\)`)
	identifier = regexp.MustCompile(`\b[a-zA-Z_][a-zA-Z0-9_]*\b\s*\(?`)
	keyword    = regexp.MustCompile(`^(by|on|ignoring|group_left|group_right|or|offset|and|unless|e\d*)$`)
)

// metricsOf returns the names in an expression that are not labels, functions or keywords of
// PromQL.
func metricsOf(expr string) []string {
	var names []string
	expr = regexp.MustCompile(`\[[^\]]*\]`).ReplaceAllString(expr, "")
	for _, name := range identifier.FindAllString(inLabels.ReplaceAllString(expr, ""), -1) {
		if !strings.HasSuffix(name, "(") && !keyword.MatchString(strings.TrimSpace(name)) {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return names
}

// ofClickHouse are the metrics that we use of ClickHouse's Prometheus endpoint.
var ofClickHouse = []string{
	"ClickHouseMetrics_Query", "ClickHouseMetrics_Merge", "ClickHouseMetrics_MemoryTracking", "ClickHouseMetrics_PartsActive",
	"ClickHouseProfileEvents_Query", "ClickHouseProfileEvents_FailedQuery", "ClickHouseProfileEvents_InsertedRows", "ClickHouseProfileEvents_DelayedInserts",
	"ClickHouseAsyncMetrics_FilesystemMainPathAvailableBytes", "ClickHouseAsyncMetrics_FilesystemMainPathTotalBytes",
	"ClickHouseAsyncMetrics_MaxPartCountForPartition",
}

// TestClickHouseHasItsMetrics: a server's endpoint exports the rows of three system tables,
// with these prefixes. The embedded engine has two of them; the names of the third,
// system.asynchronous_metrics, are from ClickHouse's documentation.
func TestClickHouseHasItsMetrics(t *testing.T) {
	t.Parallel()
	engine := clickhousetest.Start(t)
	there := clickhousetest.Exec(t, engine, `
		SELECT 'ClickHouseMetrics_' || metric FROM system.metrics
		UNION ALL SELECT 'ClickHouseProfileEvents_' || event FROM system.events
		SETTINGS system_events_show_zero_values = 1`)
	for _, name := range ofClickHouse {
		if !strings.HasPrefix(name, "ClickHouseAsyncMetrics_") && !slices.Contains(strings.Fields(there), name) {
			t.Errorf("ClickHouse has no %s", name)
		}
	}
}

// metricNames reports whether a name is a metric of ours, of the process, of Prometheus, or
// of the ClickHouse server. Ours are in docs/metrics.md, which cmd/internal/run compares with
// the registered ones.
func metricNames(t *testing.T) func(string) bool {
	t.Helper()
	known := map[string]bool{"up": true, "ALERTS": true} // of Prometheus itself
	for _, name := range ofClickHouse {
		known[name] = true
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `(sluice_\\w+)` ").FindAllStringSubmatch(string(read(t, "../docs/metrics.md")), -1) {
		known[row[1]] = true
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	families, err := reg.Gather()
	fatal.If(t, err)
	for _, family := range families {
		known[family.GetName()] = true
	}
	return func(name string) bool {
		for _, ending := range []string{"", "_bucket", "_sum", "_count"} {
			if base, ok := strings.CutSuffix(name, ending); ok && known[base] {
				return true
			}
		}
		return false
	}
}
