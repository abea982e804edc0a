package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/auth"
	"sluice/pkg/flow"
	"sluice/pkg/programtest"
)

// alarms is a fault run: a low load on a deployment, a fault every two minutes, and the
// unmodified rules of deploy/prometheus in Prometheus with Alertmanager. Each fault must
// raise its alert, and no other alert may fire. The recorded series become unit tests of
// the rules. Two run concurrently: `sluice up`, and a deployment of several programs, for the
// faults that `sluice up` cannot have.
//
// The pace divides all durations of rules and faults, and stretches recorded series: at a
// pace of 4 an hour takes 15 minutes.
type alarms struct {
	watched
	name         string // up, or programs
	plan         []fault
	pace         float64
	alertmanager string // file of the program

	begun     time.Time
	position  int // of the last record; guarded by mu
	mu        sync.Mutex
	delivered map[string][]time.Time // notification times of Alertmanager's webhook, by alert
	fired     []firing
	recorded  map[string]recording // by alert
}

// firing is a period in which an alert fired.
type firing struct {
	alert      string
	begin, end time.Time // end: zero while it fires
}

func (a *alarms) sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(a.paced(d)):
	}
}

func (a *alarms) paced(d time.Duration) time.Duration { return time.Duration(float64(d) / a.pace) }

// record returns the next record of the trickle's engine.
func (a *alarms) record(valueType, intent, value string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.position++
	return fmt.Sprintf(`{"partitionId":1,"position":%d,"key":%d,"timestamp":%d,"recordType":"EVENT","valueType":"%s","intent":"%s","value":%s}`,
		a.position, 2251799813685286+a.position, time.Now().UnixMilli(), valueType, intent, value)
}

func (a *alarms) post(ctx context.Context, to, token, body string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	if req.Header.Set("Authorization", "Bearer "+token); strings.HasSuffix(to, "_bulk") {
		req.SetBasicAuth("exporter", token)
		req.Header.Set("Content-Type", "application/x-ndjson")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if answer, _ := io.ReadAll(res.Body); bytes.Contains(answer, []byte(`"errors":true`)) {
		return http.StatusTooManyRequests, nil
	}
	return res.StatusCode, nil
}

// trickle posts five records a second, and with the token of the quiet source one a minute until silent.
// It retries rejected records, as an exporter does.
func (a *alarms) trickle(ctx context.Context, token string, silent time.Time) error {
	next := time.Now()
	for n := 0; ctx.Err() == nil; n++ {
		body := a.record("JOB", "CREATED", `{"type":"charge"}`)
		for ctx.Err() == nil {
			if status, err := a.post(ctx, a.d.URL+"/flow/flowRecord/batch", a.d.Token, body); err == nil && status == http.StatusOK {
				break
			}
			time.Sleep(500 * time.Millisecond)
		}
		if token != "" && time.Now().After(next) && time.Now().Before(silent) {
			_, _ = a.post(ctx, a.d.URL+"/flow/flowRecord/batch", token, a.record("JOB", "CREATED", `{"type":"quiet"}`)) // the next one comes soon
			next = next.Add(a.paced(time.Minute))
		}
		time.Sleep(200 * time.Millisecond)
	}
	return nil
}

// webhook receives Alertmanager's notifications.
func (a *alarms) webhook(_ http.ResponseWriter, r *http.Request) {
	var message struct {
		Alerts []struct {
			Status string
			Labels map[string]string
		}
	}
	if json.NewDecoder(r.Body).Decode(&message) != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range message.Alerts {
		if name := one.Labels["alertname"]; one.Status == "firing" {
			a.delivered[name] = append(a.delivered[name], time.Now())
		}
	}
}

var (
	duration = regexp.MustCompile(`\b(\d+)([smhd])\b`)
	timed    = regexp.MustCompile(`\[[^\]]+\]|offset \w+|(?m)^ +(for|group_\w+|repeat_interval): \w+$`)
)

func (a *alarms) atPace(rules []byte) []byte {
	return timed.ReplaceAllFunc(rules, func(part []byte) []byte {
		return duration.ReplaceAllFunc(part, func(text []byte) []byte {
			d, _ := time.ParseDuration(strings.Replace(string(text), "d", "h", 1)) // no rule has days
			return fmt.Appendf(nil, "%dms", a.paced(d).Milliseconds())
		})
	})
}

// makeDeployment makes the deployment, without starting it: sluice up on a disk of its own, or the programs.
func (a *alarms) makeDeployment(dir string) (addresses map[string]string, err error) {
	cfg := deployment.Config{Bin: filepath.Dir(a.sluice), Dir: dir, Up: a.name == deployment.Up, Exporters: true}
	if !cfg.Up {
		monitor := programtest.Address()
		cfg.Console, cfg.Links = true, true
		cfg.Options = map[string][]string{
			deployment.NATS: {"--monitor", monitor}, deployment.Ingester: {"--stream-max-bytes", strconv.Itoa(laneBudget), "--dead-max-bytes", strconv.Itoa(deadBudget)},
			deployment.API: {"--stream-max-bytes", strconv.Itoa(laneBudget), "--dead-max-bytes", strconv.Itoa(deadBudget), "--nats-monitors", "http://" + monitor},
		}
	}
	if a.d, err = deployment.New(cfg); err != nil {
		return nil, err
	}
	if !cfg.Up {
		return map[string]string{"api:8081": a.d.Process(deployment.API).Ops, "ingester:8082": a.d.Process(deployment.Ingester).Ops,
			"console:8084": a.d.Process(deployment.Console).Ops}, nil
	}
	if err := syscall.Mount("sluice-alarms", a.data(), "tmpfs", 0, "size="+diskSize); err != nil {
		return nil, fmt.Errorf("mount a small disk: %w: run as root", err)
	}
	return map[string]string{"127.0.0.1:8081": a.d.Process(deployment.Up).Ops}, nil
}

// start starts the deployment, Prometheus, and Alertmanager.
func (a *alarms) start(ctx context.Context, dir string) (stop func() error, err error) {
	addresses, err := a.makeDeployment(dir)
	if err != nil {
		return nil, err
	}
	hook := httptest.NewServer(http.HandlerFunc(a.webhook))
	a.prometheus = programtest.Address()
	manager := programtest.Address()
	stop = func() error {
		err := a.d.Stop()
		if a.d.Up {
			err = errors.Join(err, syscall.Unmount(a.data(), syscall.MNT_DETACH))
		}
		hook.Close()
		return err
	}
	if err := errors.Join(a.configure(dir, addresses), a.d.Start(ctx)); err != nil {
		return stop, err
	}
	config, err := os.ReadFile(filepath.Join(dir, "prometheus.yml"))
	rules, rulesErr := os.ReadFile(filepath.Join(a.deploy, "prometheus/alerts.yml"))
	routes, routesErr := os.ReadFile(filepath.Join(a.deploy, "alertmanager/alertmanager.yml"))
	if err := errors.Join(err, rulesErr, routesErr); err != nil {
		return stop, err
	}
	every := fmt.Sprintf("%dms", a.paced(15*time.Second).Milliseconds())
	text := regexp.MustCompile(`(?:127\.0\.0\.1|alertmanager):9093`).ReplaceAllString(strings.ReplaceAll(string(config), "500ms", every), manager)
	sent := regexp.MustCompile(`url_file: [^,]+`).ReplaceAllString(string(routes), "url: "+hook.URL)
	sent = string(a.atPace([]byte(sent)))
	for name, content := range map[string][]byte{"prometheus.yml": []byte(text), "alerts.yml": a.atPace(rules), "alertmanager.yml": []byte(sent)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return stop, err
		}
	}
	// Debian's Alertmanager reads a template below /usr/share: mount its package's.
	share := filepath.Join(filepath.Dir(filepath.Dir(a.alertmanager)), "share")
	for _, p := range []*programtest.Process{
		programtest.New(dir, "alertmanager", "unshare", "--mount", "sh", "-c", `mount --bind "$0" /usr/share && exec "$@"`, share, a.alertmanager, "--config.file", filepath.Join(dir, "alertmanager.yml"), "--storage.path", filepath.Join(dir, "alerts"),
			"--web.listen-address", manager, "--cluster.listen-address", "", "--log.level", "warn"),
		programtest.New(dir, "prometheus", filepath.Join(a.bin, "prometheus"), "--config.file", filepath.Join(dir, "prometheus.yml"),
			"--storage.tsdb.path", filepath.Join(dir, "tsdb"), "--web.listen-address", a.prometheus, "--log.level", "warn"),
	} {
		if err := p.Start(); err != nil {
			return stop, err
		}
		before := stop
		stop = func() error { return errors.Join(p.Stop(), before()) }
	}
	return stop, nil
}

// run is the fault run: an hour and a half, divided by the pace.
func (a *alarms) run(ctx context.Context, dir string) (err error) {
	a.delivered = map[string][]time.Time{}
	stop, err := a.start(ctx, dir)
	if stop != nil {
		defer func() { err = errors.Join(err, stop()) }()
	}
	if err != nil {
		return err
	}
	token := ""
	if a.d.Up {
		token = auth.NewToken()
		if err := auth.Edit(filepath.Join(a.data(), "tokens.yaml"), func(all []auth.Entry) ([]auth.Entry, error) {
			return append(all, auth.Entry{Subject: quiet, Source: quiet, SHA256: auth.Digest(token), Scopes: []flow.Scope{flow.ScopeRecordsWrite}}), nil
		}); err != nil {
			return err
		}
	}
	a.begun = time.Now()
	silent := a.begun.Add(a.paced(70 * time.Minute))
	posting, enough := context.WithCancel(ctx)
	var beside errgroup.Group
	defer func() { enough(); err = errors.Join(err, beside.Wait()) }()
	beside.Go(func() error { return a.trickle(posting, token, silent) })
	beside.Go(func() error { return a.follow(posting) })

	done, err := a.inject(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "foreign:", err)
	}
	if err == nil && a.d.Up {
		a.wait(ctx, silent)
		done = append(done, carried{fault{name: "the source quiet stops posting", must: []string{"SourceSilent"}}, time.Now()})
		a.wait(ctx, silent.Add(a.paced(22*time.Minute)))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	recorded, failed := a.recordings(ctx)
	a.recorded = recorded
	return errors.Join(err, ctx.Err(), a.judge(done), failed)
}

// inject carries out the plan, from four minutes after the begin on.
func (a *alarms) inject(ctx context.Context) (done []carried, err error) {
	at := a.begun.Add(a.paced(4 * time.Minute))
	for _, f := range a.plan {
		if a.wait(ctx, at); ctx.Err() != nil {
			return done, ctx.Err()
		}
		done = append(done, carried{f, time.Now()})
		if err := f.do(a, ctx); err != nil {
			return done, fmt.Errorf("%s: %w", f.name, err)
		}
		at = at.Add(a.paced(cmp.Or(f.apart, 2*time.Minute)))
	}
	a.wait(ctx, at)
	return done, nil
}

func (a *alarms) wait(ctx context.Context, at time.Time) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Until(at)):
	}
}

// follow records when each alert starts and stops firing.
func (a *alarms) follow(ctx context.Context) error {
	for ctx.Err() == nil {
		if now, err := a.firing(ctx); err == nil {
			a.mu.Lock()
			for i, f := range a.fired {
				if _, still := now[f.alert]; f.end.IsZero() && !still {
					a.fired[i].end = time.Now()
				} else if f.end.IsZero() {
					delete(now, f.alert)
				}
			}
			for name := range now {
				a.fired = append(a.fired, firing{alert: name, begin: time.Now()})
			}
			a.mu.Unlock()
		}
		a.sleep(ctx, 4*time.Second)
	}
	return nil
}

type carried struct {
	fault
	at time.Time
}

// judge prints the alerts of each fault, missing alerts, and alerts without a fault. An
// alert belongs to the last fault that may raise it. The caller holds mu.
func (a *alarms) judge(done []carried) error {
	var wrong []error
	raised := make([][]firing, len(done))
	for _, f := range a.fired {
		if f.alert == "Watchdog" {
			continue
		}
		of := -1
		for i, c := range done {
			if !f.begin.Before(c.at) && (slices.Contains(c.must, f.alert) || slices.Contains(c.may, f.alert)) {
				of = i
			}
		}
		if of < 0 {
			wrong = append(wrong, fmt.Errorf("%s fired after %s without a fault", f.alert, a.stretched(f.begin.Sub(a.begun))))
			continue
		}
		raised[of] = append(raised[of], f)
	}
	fmt.Printf("\n%s:\n\n| after | fault | alert, after, delivered after |\n|--:|---|---|\n", a.name)
	for i, c := range done {
		var all []string
		missing := slices.Clone(c.must)
		for _, f := range raised[i] {
			missing = slices.DeleteFunc(missing, func(name string) bool { return name == f.alert })
			came := slices.IndexFunc(a.delivered[f.alert], func(at time.Time) bool { return !at.Before(f.begin.Add(-a.paced(5 * time.Second))) })
			if came < 0 && slices.Contains(c.must, f.alert) {
				wrong = append(wrong, fmt.Errorf("%s was not delivered", f.alert))
				continue
			}
			if came < 0 { // it fired again within Alertmanager's group_interval
				all = append(all, fmt.Sprintf("%s %s", f.alert, a.stretched(f.begin.Sub(c.at))))
				continue
			}
			all = append(all, fmt.Sprintf("%s %s, %s", f.alert, a.stretched(f.begin.Sub(c.at)), a.stretched(a.delivered[f.alert][came].Sub(c.at))))
		}
		fmt.Printf("| %s | %s | %s |\n", a.stretched(c.at.Sub(a.begun)), c.name, strings.Join(all, "; "))
		if len(missing) > 0 {
			wrong = append(wrong, fmt.Errorf("%s after %s: %q did not fire", c.name, a.stretched(c.at.Sub(a.begun)), missing))
		}
	}
	fmt.Printf("the watchdog was delivered %d times\n", len(a.delivered["Watchdog"]))
	return errors.Join(wrong...)
}

// stretched converts a duration of the run to a pace of 1.
func (a *alarms) stretched(d time.Duration) time.Duration {
	return time.Duration(float64(d) * a.pace).Round(time.Second)
}
