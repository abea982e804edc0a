// Command foreign tests third-party programs, mostly clients, against `sluice up`. It
// prints a table of checks, and exits 0 only if none failed.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/auth"
	"sluice/pkg/programtest"
)

type options struct {
	Checks  string  `default:"cmd/internal/foreign/clients" type:"path" help:"Folder of the checks."`
	Clients string  `default:"docs/clients.md" type:"path" help:"Page with the programs that post records."`
	Deploy  string  `default:"deploy" type:"path" help:"Folder of alerts and dashboards."`
	Sluice  string  `default:".cache/programs/plain/sluice" type:"path" help:"The program sluice."`
	Tools   string  `default:".cache/foreign" type:"path" help:"Folder of the clients that install.sh installed."`
	Only    string  `help:"Run only clients, or deployments of --alarms, whose name contains this."`
	Alarms  float64 `help:"Instead: run faults for an hour and a half at this multiple of the pace, with Alertmanager, and list the alerts of each."`
	Keep    string  `default:".cache/alarms" type:"path" help:"Folder of that run, with alerts_test.yml."`
	All     bool    `help:"Also fail if a client is not installed."`
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("foreign"), kong.Description("Runs foreign clients against sluice up."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	http.DefaultClient.Timeout = 2 * time.Minute // a server that does not answer fails the check
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "foreign:", err)
		os.Exit(1)
	}
}

// client is a program that checks one client. It prints a line for each check: ok, FAIL or
// unsupported, its name and the reason, separated by tabs.
type client struct {
	name    string
	queue   string // clients of one queue run sequentially, queues concurrently
	needs   string // a file that install.sh creates if the client's language is installed
	command []string
	run     func(ctx context.Context, dir string, env map[string]string) result            // instead of command
	prepare func(ctx context.Context, dir string, env map[string]string) error             // runs before command; may be nil
	own     func(ctx context.Context, dir string) (map[string]string, func() error, error) // starts its own sluice up; may be nil
	count   *regexp.Regexp                                                                 // matches the number of checks in the output, instead of lines
}

// Limits of one client's checks, far above their usual time: a broker starts twice, and
// the machine may be busy.
const (
	clientLimit = 4 * time.Minute
	brokerLimit = 10 * time.Minute
)

func (o options) clients() []client {
	here := o.Checks + "/"
	python := filepath.Join(o.Tools, "python/bin/python")
	schemathesis := filepath.Join(o.Tools, "python/bin/schemathesis")
	all := []client{
		{name: "clickhouse-connect", needs: python, command: []string{python, here + "connect.py"}},
		{name: "clickhouse-driver", needs: python, command: []string{python, here + "driver.py"}},
		{name: "@clickhouse/client", needs: filepath.Join(o.Tools, "node_modules/@clickhouse/client"), command: []string{"node", here + "node.mjs"}},
		{name: "clickhouse-jdbc", needs: filepath.Join(o.Tools, "java"), command: []string{"java", "-cp", filepath.Join(o.Tools, "java", "*"), here + "Jdbc.java"}},
		o.mining(), // before schemathesis posts records that no engine writes
		{name: "schemathesis", needs: schemathesis, count: regexp.MustCompile(`(\d+) generated, (\d+) passed`), command: []string{
			schemathesis, "--no-color", "run", "$API/openapi.json", "-H", "Authorization: Bearer $TOKEN", "--phases", "examples,coverage,fuzzing",
			"--max-examples", "15", "--seed", "1", "--generation-database", "none",
			"--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance",
		}},
	}
	all = append(all, client{name: "analysts' tools, dbt, notebook", queue: "analysts", needs: python, own: o.start, command: []string{python, here + "analysts.py"}})
	sender := loops{page: o.Clients, python: python}
	all = append(all, client{name: "senders in four languages", queue: "senders", needs: python, run: sender.check})
	newest := filepath.Join(o.Tools, "camunda-zeebe-"+camundas[len(camundas)-1]) // its libraries include the client
	all = append(all, client{name: "elasticsearch-java", needs: filepath.Join(newest, "bin", "broker"), prepare: ship, command: []string{
		"java", "-cp", filepath.Join(newest, "lib", "*"), here + "Strict.java"}})
	for _, version := range camundas {
		b := broker{version: version, checks: o.Checks, home: filepath.Join(o.Tools, "camunda-zeebe-"+version)}
		all = append(all, client{name: "camunda " + version, queue: "brokers", needs: filepath.Join(b.home, "bin", "broker"), run: b.check})
	}
	all = append(all, client{name: "kubernetes-validate", queue: "packages", needs: python, prepare: render, command: []string{python, here + "chart.py"}})
	p := packaged{sluice: o.Sluice, nfpm: filepath.Join(o.Tools, "nfpm"), python: python}
	all = append(all, client{name: "dpkg, rpm, systemd", queue: "packages", needs: p.nfpm, run: p.check})
	w := watched{bin: filepath.Join(o.Tools, "prometheus/usr/bin"), deploy: o.Deploy, sluice: o.Sluice}
	all = append(all, client{name: "prometheus", queue: "prometheus", needs: filepath.Join(w.bin, "promtool"), run: w.check})
	return slices.DeleteFunc(all, func(c client) bool { return !strings.Contains(c.name, o.Only) })
}

// camundas are the versions whose broker and exporters are on Maven Central
// (docs/camunda.md). install.sh fetches them.
var camundas = []string{"8.5.8", "8.6.0"}

type result struct {
	ok                  int
	failed, unsupported []string
	notes               []string
	missing             bool // not installed
	took                time.Duration
}

// run starts the product, and then the clients.
func (o options) run(ctx context.Context) error {
	if o.Alarms > 0 {
		return o.alarms(ctx)
	}
	dir, err := os.MkdirTemp("", "sluice-foreign-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	env, stop, err := o.start(ctx, dir)
	if err != nil {
		return err
	}
	results := map[string]result{}
	var mu sync.Mutex
	queues := map[string][]client{}
	for _, c := range o.clients() {
		queues[c.queue] = append(queues[c.queue], c)
	}
	var all errgroup.Group
	for _, clients := range queues { // brokers mostly wait
		all.Go(func() error {
			for _, c := range clients {
				r := c.check(ctx, dir, env)
				mu.Lock()
				results[c.name] = r
				mu.Unlock()
			}
			return nil
		})
	}
	return errors.Join(all.Wait(), o.report(results), stop())
}

// alarms runs the faults of both deployments concurrently.
func (o options) alarms(ctx context.Context) error {
	if err := os.RemoveAll(o.Keep); err != nil {
		return err
	}
	w := watched{bin: filepath.Join(o.Tools, "prometheus/usr/bin"), deploy: o.Deploy, sluice: o.Sluice}
	manager := filepath.Join(w.bin, "prometheus-alertmanager")
	both := []*alarms{
		{watched: w, name: deployment.Up, plan: append([]fault{once}, slices.Repeat(frequent, 6)[:28]...), pace: o.Alarms, alertmanager: manager},
		{watched: w, name: "programs", plan: ofPrograms, pace: o.Alarms, alertmanager: manager},
	}
	both = slices.DeleteFunc(both, func(a *alarms) bool { return !strings.Contains(a.name, o.Only) })
	failed := make([]error, len(both))
	var all errgroup.Group
	for i, a := range both {
		all.Go(func() error { failed[i] = a.run(ctx, filepath.Join(o.Keep, a.name)); return nil })
	}
	_ = all.Wait()
	return errors.Join(append(failed, writeTests(ctx, o.Keep, both...))...)
}

// start starts sluice up in a folder, and returns the clients' environment.
func (o options) start(ctx context.Context, dir string) (env map[string]string, stop func() error, err error) {
	d, err := deployment.Start(ctx, deployment.Config{Bin: filepath.Dir(o.Sluice), Dir: dir, Up: true, Exporters: true})
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Stop())
		}
	}()
	data := d.Process(deployment.Up).Data
	password, err := os.ReadFile(filepath.Join(data, "secrets/clickhouse-admin"))
	if err != nil {
		return nil, nil, err
	}
	host, nativePort, _ := strings.Cut(d.Native, ":")
	_, httpPort, _ := strings.Cut(d.HTTP, ":")
	return map[string]string{
		"HOST": host, "HTTP_PORT": httpPort, "NATIVE_PORT": nativePort, "ADMIN_PASSWORD": strings.TrimSpace(string(password)),
		"API": d.URL, "TOKEN": d.Token, "CLIENTS": o.Tools,
		"SLUICE": o.Sluice, "DATA": data, "ROOT": filepath.Dir(o.Deploy),
		"ELASTIC": d.Elastic, "TOKENS": filepath.Join(data, "tokens.yaml"), "SHIPPERS_TOKEN": auth.NewToken(),
	}, d.Stop, d.Exec(ctx, "CREATE DATABASE foreign")
}

func (c client) check(ctx context.Context, dir string, env map[string]string) (r result) {
	if _, err := os.Stat(c.needs); err != nil {
		return result{missing: true}
	}
	limit := clientLimit
	if c.run != nil || c.own != nil {
		limit = brokerLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if c.own != nil {
		dir = filepath.Join(dir, c.queue)
		own, stop, err := c.own(ctx, dir)
		if err != nil {
			return result{failed: []string{err.Error()}}
		}
		defer func() {
			if err := stop(); err != nil {
				r.failed = append(r.failed, err.Error())
			}
		}()
		env = own
	}
	if c.run != nil {
		begun := time.Now()
		r := c.run(ctx, dir, env)
		r.took = time.Since(begun)
		return r
	}
	if c.prepare != nil {
		if err := c.prepare(ctx, dir, env); err != nil {
			return result{failed: []string{err.Error()}}
		}
	}
	args := make([]string, len(c.command))
	for i, arg := range c.command {
		args[i] = os.Expand(arg, func(name string) string { return env[name] })
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = time.Second
	cmd.Dir, cmd.Env = dir, append(programtest.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	begun := time.Now()
	err := cmd.Run()
	r = c.read(said.String())
	r.took = time.Since(begun)
	if err != nil && len(r.failed) == 0 {
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		r.failed = append(r.failed, fmt.Sprintf("%v: %s", err, strings.Join(lines[max(0, len(lines)-40):], "\n    ")))
	}
	if err == nil && r.ok == 0 {
		r.failed = append(r.failed, "it checked nothing")
	}
	return r
}

func (c client) read(said string) (r result) {
	if c.count != nil {
		if m := c.count.FindStringSubmatch(said); m != nil {
			fmt.Sscan(m[2], &r.ok)
		}
		return r
	}
	for line := range strings.Lines(said) {
		outcome, rest, _ := strings.Cut(strings.TrimSpace(line), "\t")
		rest = strings.ReplaceAll(rest, "\t", ": ")
		switch outcome {
		case "ok":
			r.ok++
		case "FAIL":
			r.failed = append(r.failed, rest)
		case "unsupported":
			r.unsupported = append(r.unsupported, rest)
		}
	}
	return r
}

func (o options) report(results map[string]result) (err error) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "client\tok\tfailed\tunsupported\tseconds")
	for _, c := range o.clients() {
		r := results[c.name]
		if r.missing {
			fmt.Fprintf(w, "%s\tNOT RUN: it is not installed\n", c.name)
			if o.All {
				err = errors.Join(err, fmt.Errorf("%s is not installed", c.name))
			}
			continue
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%.1f\n", c.name, r.ok, len(r.failed), len(r.unsupported), r.took.Seconds())
	}
	w.Flush()
	for _, c := range o.clients() {
		for _, what := range results[c.name].notes {
			fmt.Printf("note         %s: %s\n", c.name, what)
		}
		for _, what := range results[c.name].unsupported {
			fmt.Printf("unsupported  %s: %s\n", c.name, what)
		}
		for _, what := range results[c.name].failed {
			fmt.Printf("FAILED       %s: %s\n", c.name, what)
			err = errors.Join(err, fmt.Errorf("%s: a check failed", c.name))
		}
	}
	return err
}
