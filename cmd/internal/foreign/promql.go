package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

type alert struct {
	State       string            `json:"state"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// firing returns Prometheus's firing alerts, by name.
func (w *watched) firing(ctx context.Context) (map[string]alert, error) {
	var answer struct{ Alerts []alert }
	if err := w.get(ctx, "/api/v1/alerts", &answer); err != nil {
		return nil, err
	}
	firing := map[string]alert{}
	for _, a := range answer.Alerts {
		if a.State == "firing" {
			firing[a.Labels["alertname"]] = a
		}
	}
	return firing, nil
}

// interval replaces Grafana's variable by twenty scrapes of this check.
var interval = strings.NewReplacer("$__rate_interval", "10s")

// ofServers matches metrics of servers that sluice up does not have.
var ofServers = regexp.MustCompile(`ClickHouse[A-Z]\w+_|"clickhouse"`)

// expressions runs all expressions of dashboards, alerts and runbooks. Panels must have
// an answer, except for metrics of servers and for events that are rare (> 0) or have not
// happened yet.
func (w *watched) expressions(ctx context.Context) error {
	all := map[string]bool{} // true: must have an answer
	add := func(expr string, needed bool) { all[expr] = all[expr] || needed }
	files, err := filepath.Glob(filepath.Join(w.deploy, "grafana/dashboards/*.json"))
	if err != nil {
		return err
	}
	for _, file := range files {
		var dashboard struct {
			Panels []struct{ Targets []struct{ Expr string } }
		}
		if err := readJSON(file, &dashboard); err != nil {
			return err
		}
		for _, panel := range dashboard.Panels {
			for _, target := range panel.Targets {
				add(target.Expr, !ofServers.MatchString(target.Expr) && !strings.HasSuffix(target.Expr, "> 0") && !strings.Contains(target.Expr, "_purged_"))
			}
		}
	}
	shown := len(all)
	var rules struct {
		Groups []struct{ Rules []struct{ Expr string } }
	}
	content, err := os.ReadFile(filepath.Join(w.deploy, "prometheus/alerts.yml"))
	if err == nil {
		err = yaml.Unmarshal(content, &rules)
	}
	if err != nil {
		return err
	}
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			add(rule.Expr, false)
		}
	}
	pages, err := filepath.Glob(filepath.Join(w.deploy, "../docs/runbooks/*.md"))
	if err != nil {
		return err
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		for _, block := range regexp.MustCompile("(?ms)^```promql\n(.*?)\n```$").FindAllSubmatch(text, -1) {
			for line := range strings.Lines(string(block[1])) {
				add(strings.TrimSpace(line), false)
			}
		}
	}
	w.done.notes = append(w.done.notes, fmt.Sprintf("%d expressions of %d dashboards, %d of alerts and runbooks", shown, len(files), len(all)-shown))
	for expr, needed := range all {
		answers, err := w.query(ctx, interval.Replace(expr))
		if err == nil && needed && len(answers) == 0 {
			err = errors.New("no answer")
		}
		w.checked(expr, err)
	}
	return nil
}

func (w *watched) query(ctx context.Context, expr string) ([]json.RawMessage, error) {
	var answer struct {
		Type   string            `json:"resultType"`
		Result []json.RawMessage `json:"result"`
	}
	err := w.get(ctx, "/api/v1/query?query="+url.QueryEscape(expr), &answer)
	return answer.Result, err
}

// value returns the number of series of an expression.
func (w *watched) value(ctx context.Context, expr string) (int, error) {
	answers, err := w.query(ctx, expr)
	return len(answers), err
}

func (w *watched) get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.prometheus+path, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return fmt.Errorf("prometheus answers %s: %w", res.Status, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("prometheus answers %s: %s", res.Status, answer.Error)
	}
	return json.Unmarshal(answer.Data, into)
}

func readJSON(file string, into any) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}
