package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// alarms is the fault run: a low load on sluice up, a fault every two minutes, and the
// unmodified rules of deploy/prometheus in Prometheus with Alertmanager. Each fault must
// raise its alert, and no other alert may fire. The recorded series become unit tests of
// the rules that fired.
//
// The pace divides all durations of rules and faults, and stretches recorded series: at a
// pace of 4 an hour takes 15 minutes.
type alarms struct {
	watched
	pace         float64
	alertmanager string // file of the program

	begun     time.Time
	position  int // of the last record; guarded by mu
	mu        sync.Mutex
	delivered map[string][]time.Time // notification times of Alertmanager's webhook, by alert
	fired     []firing
}

// firing is a period in which an alert fired.
type firing struct {
	alert      string
	begin, end time.Time // end: zero while it fires
}

// fault is a fault of sluice up.
type fault struct {
	name string
	must []string // alerts that it must raise
	may  []string // alerts that may follow: late records and answers
	do   func(a *alarms, ctx context.Context) error
}

// late are the alerts for late or missing records or answers.
var late = []string{"FreshnessBurnsFast", "AckBurnsFast", "LagOld", "ApiErrors", "NotReady", "SluiceDown", "LaneWithoutOwner", "EngineDied"}

// faults are injected in turn, repeatedly; the last one first, and only once.
var faults = []fault{
	{"kill the engine", []string{"EngineDied"}, late, func(a *alarms, _ context.Context) error { return a.d.SignalEngine(syscall.SIGKILL) }},
	{"freeze the engine for 90 s", []string{"NotReady"}, late, func(a *alarms, ctx context.Context) error {
		if err := a.d.SignalEngine(syscall.SIGSTOP); err != nil {
			return err
		}
		a.hold(ctx)
		return a.d.SignalEngine(syscall.SIGCONT)
	}},
	{"fill the disk for 90 s", []string{"DiskAlmostFull"}, late, func(a *alarms, ctx context.Context) error {
		held := make(chan struct{})
		go func() { defer close(held); a.hold(ctx) }()
		for {
			if err := a.fill(); err != nil {
				return err
			}
			select {
			case <-held:
				return a.resize(diskSize)
			case <-time.After(200 * time.Millisecond): // retried because deletions must not free space meanwhile
			}
		}
	}},
	{"a client without a good token", []string{"ClientRejected"}, nil, func(a *alarms, ctx context.Context) error {
		for range 60 {
			_, _ = a.post(ctx, a.d.URL+"/flow/flowRecord/batch", "no-token", "[]") // rejected
			a.sleep(ctx, 1500*time.Millisecond)
		}
		return nil
	}},
	{"thirty documents that are no records", []string{"DeadLetters"}, nil, func(a *alarms, ctx context.Context) error {
		status, err := a.post(ctx, a.d.Elastic+"/_bulk", a.d.Token, a.junk(30))
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("the bulk is answered %d", status)
		}
		return err
	}},
	{"an incident, and a timer that is overdue", []string{"IncidentsOpen", "WorkOverdue"}, nil, func(a *alarms, ctx context.Context) error {
		const of = `"processInstanceKey":2251799813685255,"elementInstanceKey":2251799813685264,"processDefinitionKey":2251799813685250,"bpmnProcessId":"order","elementId":"work"`
		_, err := a.post(ctx, a.d.URL+"/flow/flowRecord/batch", a.d.Token, "["+a.record("PROCESS_INSTANCE", "ELEMENT_ACTIVATED", `{"bpmnElementType":"PROCESS",`+of+`}`)+","+
			a.record("INCIDENT", "CREATED", `{"errorType":"JOB_NO_RETRIES","errorMessage":"no",`+of+`}`)+","+
			a.record("TIMER", "CREATED", `{"targetElementId":"work","repetitions":1,"dueDate":`+strconv.FormatInt(time.Now().Add(-time.Hour).UnixMilli(), 10)+`,`+of+`}`)+"]")
		return err
	}},
}

// diskSize is the size of the run's disk, in memory.
const diskSize = "24g"

// quiet is a source that posts every minute for an hour.
const quiet = "quiet"

func (a *alarms) data() string { return filepath.Join(a.d.Dir, "data") }

// fill shrinks the disk to its used size.
func (a *alarms) fill() error {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(a.data(), &stat); err != nil {
		return err
	}
	err := a.resize(fmt.Sprint((stat.Blocks-stat.Bfree)*uint64(stat.Bsize) + 64<<10))
	if errors.Is(err, syscall.EINVAL) { // more was written meanwhile
		return nil
	}
	return err
}

func (a *alarms) resize(size string) error {
	return syscall.Mount("", a.data(), "", syscall.MS_REMOUNT, "size="+size)
}

// junk returns a bulk of n distinct documents that are not records.
func (a *alarms) junk(n int) string {
	var bulk strings.Builder
	for i := range n {
		fmt.Fprintf(&bulk, "{\"index\":{\"_index\":\"logs\"}}\n{\"message\":\"%d of %s\"}\n", i, time.Now())
	}
	return bulk.String()
}

// hold keeps a fault for 90 s, plus the time in which sluice up detects it at any pace.
func (a *alarms) hold(ctx context.Context) {
	a.sleep(ctx, 90*time.Second)
	time.Sleep(8 * time.Second)
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
	return res.StatusCode, res.Body.Close()
}

// trickle posts five records a second, and one a minute for the quiet source until silent.
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
		if time.Now().After(next) && time.Now().Before(silent) {
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

// start starts sluice up on its own disk, Prometheus, and Alertmanager.
func (a *alarms) start(ctx context.Context, dir string) (stop func() error, err error) {
	if a.d, err = deployment.New(deployment.Config{Bin: filepath.Dir(a.sluice), Dir: dir, Up: true, Exporters: true}); err != nil {
		return nil, err
	}
	if err := syscall.Mount("sluice-alarms", a.data(), "tmpfs", 0, "size="+diskSize); err != nil {
		return nil, fmt.Errorf("mount a disk that can be filled, which only root can: %w", err)
	}
	hook := httptest.NewServer(http.HandlerFunc(a.webhook))
	a.prometheus = programtest.Address()
	manager := programtest.Address()
	stop = func() error {
		err := errors.Join(a.d.Stop(), syscall.Unmount(a.data(), syscall.MNT_DETACH))
		hook.Close()
		return err
	}
	if err := errors.Join(a.configure(dir, a.d.Process(deployment.Up).Ops), a.d.Start(ctx)); err != nil {
		return stop, err
	}
	config, err := os.ReadFile(filepath.Join(dir, "prometheus.yml"))
	rules, rulesErr := os.ReadFile(filepath.Join(a.deploy, "prometheus/alerts.yml"))
	routes, routesErr := os.ReadFile(filepath.Join(a.deploy, "alertmanager/alertmanager.yml"))
	if err := errors.Join(err, rulesErr, routesErr); err != nil {
		return stop, err
	}
	every := fmt.Sprintf("%dms", a.paced(15*time.Second).Milliseconds())
	text := strings.ReplaceAll(strings.ReplaceAll(string(config), "500ms", every), "127.0.0.1:9093", manager)
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

// run is the fault run: an hour and a quarter, divided by the pace.
func (a *alarms) run(ctx context.Context, dir string) (err error) {
	a.delivered = map[string][]time.Time{}
	stop, err := a.start(ctx, dir)
	if stop != nil {
		defer func() { err = errors.Join(err, stop()) }()
	}
	if err != nil {
		return err
	}
	token := auth.NewToken()
	if err := auth.Edit(filepath.Join(a.data(), "tokens.yaml"), func(all []auth.Entry) ([]auth.Entry, error) {
		return append(all, auth.Entry{Subject: quiet, Source: quiet, SHA256: auth.Digest(token), Scopes: []flow.Scope{flow.ScopeRecordsWrite}}), nil
	}); err != nil {
		return err
	}
	a.begun = time.Now()
	silent := a.begun.Add(a.paced(70 * time.Minute))
	posting, enough := context.WithCancel(ctx)
	var beside errgroup.Group
	defer func() { enough(); err = errors.Join(err, beside.Wait()) }()
	beside.Go(func() error { return a.trickle(posting, token, silent) })
	beside.Go(func() error { return a.follow(posting) })

	var done []carried
	for at, n := a.begun.Add(a.paced(4*time.Minute)), 0; ctx.Err() == nil && at.Before(silent.Add(-a.paced(8*time.Minute))); at, n = at.Add(a.paced(2*time.Minute)), n+1 {
		a.wait(ctx, at)
		f := faults[len(faults)-1]
		if n > 0 {
			f = faults[(n-1)%(len(faults)-1)]
		}
		done = append(done, carried{f, time.Now()})
		if err := f.do(a, ctx); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	a.wait(ctx, silent)
	done = append(done, carried{fault{name: "the source quiet stops posting", must: []string{"SourceSilent"}}, time.Now()})
	a.wait(ctx, silent.Add(a.paced(22*time.Minute)))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return errors.Join(a.judge(done), a.writeTests(ctx, dir))
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
	fmt.Println("| after | fault | alert, after, delivered after |\n|--:|---|---|")
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
