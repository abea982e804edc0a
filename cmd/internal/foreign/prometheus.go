package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
	"sluice/pkg/programtest"
)

// watched runs Debian's Prometheus on its own sluice up under load. It kills the engine,
// halts a lane and fills its disk budget. The rules are those of deploy/prometheus with a
// second for each duration (for:). promtool checks the real durations, and that each alert
// resolves.
type watched struct {
	bin    string // folder of prometheus and promtool
	deploy string
	sluice string

	d          *deployment.Deployment // sluice up
	prometheus string                 // address
	done       result
}

// budget is the disk budget of the lane, small enough to be filled in seconds.
const budget = 8 << 20

// atFault are the alerts that must fire only after a fault.
var atFault = []string{"EngineDied", "LaneHalted", "NotReady", "DiskBudgetAlmostUsedUp", "ApiRejecting"}

// check runs promtool concurrently with the rest.
func (w watched) check(ctx context.Context, dir string, _ map[string]string) result {
	dir = filepath.Join(dir, "watched")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return result{failed: []string{err.Error()}}
	}
	tool := watched{bin: w.bin, deploy: w.deploy}
	var beside errgroup.Group
	beside.Go(func() error { tool.promtool(ctx); return nil })
	err := w.watch(ctx, dir)
	_ = beside.Wait() // it records its own results
	r := w.done
	r.ok, r.failed = r.ok+tool.done.ok, append(r.failed, tool.done.failed...)
	if err != nil {
		r.failed = append(r.failed, err.Error())
	}
	return r
}

// promtool checks the files, and that each alert fires and resolves.
func (w *watched) promtool(ctx context.Context) {
	for _, arguments := range [][]string{
		{"check", "config", "prometheus.yml"}, {"check", "config", "sluice-up.yml"}, {"test", "rules", "alerts_test.yml", "alerts_start_test.yml"},
	} {
		cmd := exec.CommandContext(ctx, filepath.Join(w.bin, "promtool"), arguments...)
		cmd.Dir = filepath.Join(w.deploy, "prometheus")
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		w.checked("promtool "+strings.Join(arguments, " "), err)
	}
}

func (w *watched) checked(what string, err error) {
	if err != nil {
		w.done.failed = append(w.done.failed, what+": "+err.Error())
		return
	}
	w.done.ok++
}

// watch starts all programs, injects the faults, and queries Prometheus.
func (w *watched) watch(ctx context.Context, dir string) (err error) {
	w.prometheus = programtest.Address()
	w.d, err = deployment.New(deployment.Config{Bin: filepath.Dir(w.sluice), Dir: dir, Up: true,
		Options: map[string][]string{deployment.Up: {"--stream-max-bytes", strconv.Itoa(budget)}}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.d.Stop()) }()
	up := w.d.Process(deployment.Up)
	if err := errors.Join(w.configure(dir, map[string]string{"127.0.0.1:8081": up.Ops}), w.d.Start(ctx)); err != nil {
		return err
	}

	posting, enough := context.WithCancel(ctx)
	defer enough()
	var load errgroup.Group
	defer func() { enough(); err = errors.Join(err, load.Wait()) }()
	load.Go(func() error { return w.post(posting, 1000, 100) })

	prometheus := programtest.New(dir, "prometheus", filepath.Join(w.bin, "prometheus"), "--config.file", filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path", filepath.Join(dir, "tsdb"), "--web.listen-address", w.prometheus, "--log.level", "warn")
	if err := prometheus.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, prometheus.Stop()) }()

	err = w.until(ctx, "no alert of our faults fires before them", func() error {
		up, err := w.value(ctx, `up{job="sluice"} == 1 and on () sum(rate(sluice_ingest_rows_total[5s])) > 0`)
		if err != nil || up != 1 {
			return fmt.Errorf("the target is not scraped: %w", err)
		}
		firing, err := w.firing(ctx)
		for _, name := range atFault {
			if _, fires := firing[name]; fires && err == nil {
				err = fmt.Errorf("%s fires", name)
			}
		}
		return err
	})
	if err != nil {
		return err
	}

	if err := w.d.SignalEngine(syscall.SIGKILL); err != nil {
		return err
	}
	if err := w.raised(ctx, "the engine is killed", "EngineDied"); err != nil {
		return err
	}
	again, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := up.Ready(again); err != nil {
		return err
	}

	if err := w.d.Exec(ctx, "RENAME TABLE flow.records TO flow.records_away"); err != nil {
		return err
	}
	if err := w.raised(ctx, "a table is away", "LaneHalted", "NotReady"); err != nil {
		return err
	}
	load.Go(func() error { return w.post(posting, 0, 2000) })
	if err := w.raised(ctx, "the disk budget is filled", "DiskBudgetAlmostUsedUp", "ApiRejecting"); err != nil {
		return err
	}
	enough()
	if err := w.d.Exec(ctx, "RENAME TABLE flow.records_away TO flow.records"); err != nil {
		return err
	}
	if err := w.expressions(ctx); err != nil { // while the lane waits for its next attempt
		return err
	}
	return w.until(ctx, "the lane resumes, its alert resolves, and all is stored", func() error {
		firing, err := w.firing(ctx)
		if _, fires := firing["LaneHalted"]; fires {
			return errors.Join(err, errors.New("LaneHalted still fires"))
		}
		stored, asked := w.value(ctx, `sum(sluice_stream_lag_messages) == 0`)
		if err = errors.Join(err, asked); err == nil && stored == 0 {
			err = errors.New("messages wait to be stored")
		}
		return err
	})
}

// configure copies sluice-up.yml, or else prometheus.yml, with this check's intervals and target addresses, and
// without missing targets; and alerts.yml with short durations.
func (w *watched) configure(dir string, addresses map[string]string) error {
	file := "prometheus/prometheus.yml"
	if w.d.Up {
		file = "prometheus/sluice-up.yml"
	}
	content, err := os.ReadFile(filepath.Join(w.deploy, file))
	if err != nil {
		return err
	}
	var config map[string]any
	if err := yaml.Unmarshal(content, &config); err != nil {
		return err
	}
	config["global"] = map[string]string{"scrape_interval": "500ms", "evaluation_interval": "500ms"}
	var jobs []any
	for _, job := range config["scrape_configs"].([]any) {
		text, err := yaml.Marshal(job)
		if err != nil {
			return err
		}
		for target, address := range addresses {
			if strings.Contains(string(text), target) {
				jobs = append(jobs, map[string]any{"job_name": job.(map[string]any)["job_name"], "static_configs": []any{map[string]any{"targets": []string{address}}}})
			}
		}
	}
	if len(jobs) != len(addresses) {
		return fmt.Errorf("%s does not scrape each of %v", file, addresses)
	}
	config["scrape_configs"] = jobs
	if content, err = yaml.Marshal(config); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), content, 0o600); err != nil {
		return err
	}
	rules, err := os.ReadFile(filepath.Join(w.deploy, "prometheus/alerts.yml"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "alerts.yml"), regexp.MustCompile(`(?m)^( +for:) .*$`).ReplaceAll(rules, []byte("$1 1s")), 0o600)
}

// post posts records until ctx ends; rate 0 is unlimited. It ignores rejections, which the
// faults cause.
func (w *watched) post(ctx context.Context, perSecond float64, batch int) error {
	_, err := load.Run(ctx, load.Config{URL: w.d.URL, Token: w.d.Token, Rate: perSecond, Batch: batch, Connections: 4,
		Duration: time.Hour, GiveUp: time.Second, Failures: 1 << 30})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// raised waits until all these alerts fire, and checks their annotations.
func (w *watched) raised(ctx context.Context, why string, names ...string) error {
	begun := time.Now()
	return w.until(ctx, why+": "+strings.Join(names, ", "), func() error {
		firing, err := w.firing(ctx)
		if err != nil {
			return err
		}
		for _, name := range names {
			a, ok := firing[name]
			if !ok {
				return fmt.Errorf("%s does not fire; firing are %q", name, slices.Sorted(maps.Keys(firing)))
			}
			if said := fmt.Sprint(a.Annotations); strings.Contains(said, "error expanding") || a.Annotations["runbook_url"] != "docs/runbooks/"+name+".md" {
				return fmt.Errorf("%s has the annotations %s", name, said)
			}
		}
		w.done.notes = append(w.done.notes, fmt.Sprintf("%s: %s after %.1f s", why, strings.Join(names, ", "), time.Since(begun).Seconds()))
		return nil
	})
}

func (w *watched) until(ctx context.Context, what string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	for {
		err := try()
		if err == nil {
			w.checked(what, nil)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w\n%s", what, err, w.d.Process(deployment.Up).Tail(5))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
