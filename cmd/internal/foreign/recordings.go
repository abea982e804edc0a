package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
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

var ruleOf = regexp.MustCompile(`(?s)- alert: (\w+)\n +expr: (.*?)\n +(?:for|labels):`)

// recordings are those of the rules that fired, from Prometheus's series at intervals of 15 s. The caller holds mu.
func (a *alarms) recordings(ctx context.Context) (map[string]recording, error) {
	content, err := os.ReadFile(filepath.Join(a.deploy, "prometheus/alerts.yml"))
	if err != nil {
		return nil, err
	}
	all := map[string]recording{}
	for _, rule := range ruleOf.FindAllSubmatch(content, -1) {
		name := string(rule[1])
		first := slices.IndexFunc(a.fired, func(f firing) bool { return f.alert == name })
		if first < 0 {
			continue
		}
		if all[name], err = a.recording(ctx, name, string(rule[2]), a.fired[first]); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return all, nil
}

// writeTests writes the unit tests of all rules, each of the first run that raised it, and runs them by promtool. A
// rule that no fault raised is an error.
func writeTests(ctx context.Context, dir string, runs ...*alarms) error {
	folder := filepath.Join(runs[0].deploy, "prometheus")
	rules, err := os.ReadFile(filepath.Join(folder, "alerts.yml"))
	before, readErr := os.ReadFile(filepath.Join(folder, "alerts_test.yml"))
	if err := errors.Join(err, readErr); err != nil {
		return err
	}
	var wrong []error
	header, _, _ := strings.Cut(string(before), "tests:\n")
	out := header + "tests:\n"
	for _, rule := range ruleOf.FindAllSubmatch(rules, -1) {
		name := string(rule[1])
		of := slices.IndexFunc(runs, func(a *alarms) bool { return a.recorded[name].labels != "" })
		if of < 0 {
			wrong = append(wrong, fmt.Errorf("no fault raised alert %s", name))
			continue
		}
		out += runs[of].recorded[name].test()
	}
	err = errors.Join(os.WriteFile(filepath.Join(dir, "alerts_test.yml"), []byte(out), 0o644), os.WriteFile(filepath.Join(dir, "alerts.yml"), rules, 0o644))
	if err != nil {
		return err
	}
	said, err := exec.CommandContext(ctx, filepath.Join(runs[0].bin, "promtool"), "test", "rules", filepath.Join(dir, "alerts_test.yml")).CombinedOutput()
	if err != nil {
		wrong = append(wrong, fmt.Errorf("promtool: %w\n%s", err, said))
	}
	return errors.Join(wrong...)
}

var selector = regexp.MustCompile(`\b(?:sluice_\w+|up)\b(?:\{[^}]*\})?`)

// recording reads the series of a rule around its first alert.
func (a *alarms) recording(ctx context.Context, name, expr string, f firing) (r recording, err error) {
	back := 20 * time.Minute
	if strings.Contains(expr, "[30m]") {
		back = 45 * time.Minute
	}
	if strings.Contains(expr, "[1h") {
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
	found := map[string][]string{}
	for _, one := range slices.Compact(slices.Sorted(slices.Values(selector.FindAllString(expr, -1)))) {
		series, err := a.ranged(ctx, one, from, to, step)
		if err != nil {
			return r, err
		}
		maps.Copy(found, series)
	}
	alerts, err := a.ranged(ctx, `ALERTS{alertname="`+name+`", alertstate="firing"}`, from, to, step)
	if err != nil || len(alerts) == 0 {
		return r, errors.Join(err, errors.New("the alert was not recorded"))
	}
	r = recording{name: name, series: map[string]string{}, labels: slices.Sorted(maps.Keys(alerts))[0]}
	fires := alerts[r.labels]
	begin := slices.IndexFunc(fires, func(v string) bool { return v != "_" })
	until := begin
	for until < len(fires) && fires[until] != "_" {
		until++
	}
	// Prometheus evaluated other samples: those near the first and the last are not judged.
	r.before, r.at = max(0, begin-4), begin+(until-begin)*2/3
	if until+2 < len(fires) {
		r.end = until + 2
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
			if port, is := strings.CutPrefix(value, "127.0.0.1:"); is && port != "" {
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
