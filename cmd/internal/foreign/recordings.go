package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// recording is a unit test of a rule, for promtool.
type recording struct {
	name            string
	series          map[string]string // values by series
	before, at, end int               // samples: it does not fire, it fires with labels, it does not fire any more (0: it fires to the end)
	labels          string
}

// writeTests writes unit tests of the rules that fired, from Prometheus's series at
// intervals of 15 s. The caller holds mu.
func (a *alarms) writeTests(ctx context.Context, dir string) error {
	rules := regexp.MustCompile(`(?s)- alert: (\w+)\n +expr: (.*?)\n +(?:for|labels):`)
	content, err := os.ReadFile(filepath.Join(a.deploy, "prometheus/alerts.yml"))
	if err != nil {
		return err
	}
	var out strings.Builder
	for _, rule := range rules.FindAllSubmatch(content, -1) {
		name := string(rule[1])
		first := slices.IndexFunc(a.fired, func(f firing) bool { return f.alert == name })
		if first < 0 || strings.Contains(string(rule[2]), "_bucket") || name == "Watchdog" {
			continue
		}
		r, err := a.recording(ctx, name, string(rule[2]), a.fired[first])
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		out.WriteString(r.test())
	}
	return os.WriteFile(filepath.Join(dir, "recorded.yml"), []byte(out.String()), 0o644)
}

// recording reads the series of a rule around its first alert.
func (a *alarms) recording(ctx context.Context, name, expr string, f firing) (r recording, err error) {
	back := 20 * time.Minute
	if strings.Contains(expr, "1h") {
		back = 95 * time.Minute
	}
	step := a.paced(15 * time.Second)
	from := f.begin.Add(-a.paced(back))
	if from.Before(a.begun) {
		from = a.begun
	}
	to := f.begin.Add(a.paced(2 * time.Minute))
	if !f.end.IsZero() {
		to = f.end.Add(a.paced(2 * time.Minute))
	}
	if now := time.Now(); to.After(now) {
		to = now
	}
	names := slices.Compact(slices.Sorted(slices.Values(regexp.MustCompile(`\bsluice_\w+|\bup\b`).FindAllString(expr, -1))))
	found, err := a.ranged(ctx, `{__name__=~"`+strings.Join(names, "|")+`"}`, from, to, step)
	if err != nil {
		return r, err
	}
	alerts, err := a.ranged(ctx, `ALERTS{alertname="`+name+`", alertstate="firing"}`, from, to, step)
	if err != nil || len(alerts) == 0 {
		return r, errors.Join(err, errors.New("it is not recorded"))
	}
	r = recording{name: name, series: map[string]string{}, labels: slices.Sorted(maps.Keys(alerts))[0]}
	fires := alerts[r.labels]
	begin := slices.IndexFunc(fires, func(v string) bool { return v != "_" })
	until := begin
	for until < len(fires) && fires[until] != "_" {
		until++
	}
	r.before, r.at = begin-2, begin+(until-begin)*2/3
	if until+1 < len(fires) {
		r.end = until + 1
	}
	for series, values := range found {
		if slices.ContainsFunc(values, func(v string) bool { return v != "_" && v != "0" }) {
			r.series[series] = runs(values)
		}
	}
	return r, nil
}

// ranged returns the values of each series, "_" for gaps.
func (a *alarms) ranged(ctx context.Context, query string, from, to time.Time, step time.Duration) (map[string][]string, error) {
	var answer struct {
		Result []struct {
			Metric map[string]string
			Values [][2]any
		}
	}
	err := a.get(ctx, fmt.Sprintf("/api/v1/query_range?query=%s&start=%.3f&end=%.3f&step=%.3f", url.QueryEscape(query), float64(from.UnixMilli())/1e3, float64(to.UnixMilli())/1e3, step.Seconds()), &answer)
	all := map[string][]string{}
	for _, s := range answer.Result {
		name := s.Metric["__name__"]
		var labels []string
		for _, label := range slices.Sorted(maps.Keys(s.Metric)) {
			value := s.Metric[label]
			if label == "instance" {
				value = "127.0.0.1:8081"
			}
			if label != "__name__" {
				labels = append(labels, label+`="`+value+`"`)
			}
		}
		values := slices.Repeat([]string{"_"}, int(to.Sub(from)/step)+1)
		for _, v := range s.Values {
			at := int((v[0].(float64)-float64(from.UnixMilli())/1e3)/step.Seconds() + 0.5)
			if at >= 0 && at < len(values) {
				values[at] = v[1].(string)
			}
		}
		all[name+"{"+strings.Join(labels, ", ")+"}"] = values
	}
	return all, err
}

// runs formats values for promtool, and joins equal ones.
func runs(values []string) string {
	var all []string
	for i := 0; i < len(values); {
		n := i
		for n < len(values) && values[n] == values[i] {
			n++
		}
		switch {
		case values[i] == "_" && n-i > 1:
			all = append(all, fmt.Sprintf("_x%d", n-i))
		case n-i > 1:
			all = append(all, fmt.Sprintf("%s+0x%d", values[i], n-i-1))
		default:
			all = append(all, values[i])
		}
		i = n
	}
	return strings.Join(all, " ")
}

// test formats the recording as a test of promtool.
func (r recording) test() string {
	var out strings.Builder
	fmt.Fprintf(&out, "  - name: %s\n    interval: 15s\n    input_series:\n", r.name)
	for _, series := range slices.Sorted(maps.Keys(r.series)) {
		fmt.Fprintf(&out, "      - {series: '%s', values: %s}\n", series, r.series[series])
	}
	ask := fmt.Sprintf(`'ALERTS{alertname="%s", alertstate="firing"}'`, r.name)
	fmt.Fprintf(&out, "    promql_expr_test:\n      - {eval_time: %ds, expr: %s}\n      - eval_time: %ds\n        expr: %s\n        exp_samples: [{value: 1, labels: '%s'}]\n",
		15*r.before, ask, 15*r.at, ask, r.labels)
	if r.end > 0 {
		fmt.Fprintf(&out, "      - {eval_time: %ds, expr: %s}\n", 15*r.end, ask)
	}
	return out.String()
}
