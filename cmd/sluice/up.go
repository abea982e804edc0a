package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/run"
	"sluice/pkg/api"
	"sluice/pkg/auth"
	"sluice/pkg/console"
	"sluice/pkg/dial"
	"sluice/pkg/embedded/clickhouse/library"
	engine "sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/embedded/clickhouse/supervise"
	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/ops"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// up is everything on one machine:
//
//	clients ──HTTP──▶ api ──▶ embedded NATS ──▶ ingester ──native──▶ ClickHouse engine,
//	                   └────────── ops ──────────┘                   a process of its own
//	browsers ─HTTP─▶ console, which reads from all of them
type up struct {
	Data           string `default:"./data" help:"Data folder: streams, tables, passwords, and tokens."`
	Ops            string `default:"127.0.0.1:8081" help:"Address for operators: /metrics, /healthz, /readyz."`
	Pprof          string `help:"Loopback address of Go profiles, /debug/pprof/, such as 127.0.0.1:6060; off when empty."`
	NATS           string `name:"nats" default:"127.0.0.1:4222" help:"Address of the embedded NATS server."`
	ClickHouse     string `name:"clickhouse" default:"127.0.0.1:9000" help:"Address of the ClickHouse engine's native protocol."`
	ClickHouseHTTP string `name:"clickhouse-http" default:"127.0.0.1:8123" help:"Address of the ClickHouse engine's HTTP."`
	Console        string `default:"127.0.0.1:8083" help:"Address of the web console; off when empty."`
	console.Shown
	AllowFiles bool   `help:"Allow table functions that read files and other servers, such as file(), url(), s3(), and remote(); the engine's process is then not confined to its folder."`
	Token      string `help:"Access token; when empty, generated once and kept in the data folder."`
	Library    string `name:"clickhouse-library" help:"File of the ClickHouse engine; empty: the one next to the program."`

	Private bool `help:"Require a password for every ClickHouse connection; without it, local connections without a password are the read-only user analyst."`
	engine.Statements

	API    api.Config    `embed:""`
	Ingest ingest.Config `embed:""`
	run.Business
	run.Retention
	Memory  int64         `default:"805306368" help:"Memory of this process in bytes; its budgets are shares of it. The engine is another process."`
	Streams stream.Config `embed:""`
}

// Run starts the services of the diagram from right to left, and stops them in
// reverse order.
func (u *up) Run(ctx context.Context, log *slog.Logger) (err error) {
	defer func() { err = run.UntilStopped(ctx, err) }()
	run.CollectOften()
	if err := run.BoundMemory(u.Memory + run.Bulks(u.API)); err != nil {
		return err
	}
	if err := u.Ingest.Check(); err != nil {
		return err
	}
	file, err := library.Locate(u.Library)
	if err != nil {
		return err
	}
	if err := u.checkAddresses(ctx); err != nil {
		return err
	}
	tokens, err := u.prepareData()
	if err != nil {
		return err
	}

	opsServer := run.OpsServer(ops.Config{Listen: u.Ops, Profiles: u.Pprof}, log)
	if _, err := opsServer.Listen(); err != nil {
		return err
	}
	run.WatchDisk(opsServer.Registry(), u.Data)
	users, err := natsUsers(u.secrets())
	if err != nil {
		return err
	}
	server, err := embedded.Start(embedded.Config{Data: filepath.Join(u.Data, "nats"), Listen: u.NATS, Users: users}, log)
	if err != nil {
		return err
	}
	defer server.Shutdown()
	if err := openAsOperator(ctx, server, users, u.Streams, log); err != nil {
		return err
	}
	password, err := run.ReadSecret(u.secrets(), run.SecretIngester)
	if err != nil {
		return err
	}
	address := (&url.URL{Scheme: "clickhouse", User: url.UserPassword("ingester", password), Host: u.ClickHouse, Path: "/flow"}).String()
	probe, err := warehouse.Open(warehouse.Config{URL: address, Connections: 2}, log, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	defer probe.Close()
	supervisor := supervise.New(supervise.Config{
		Args:    u.engineArgs(file),
		Env:     withoutOurs(os.Environ()),
		Metrics: opsServer.Registry(),
		Insist:  true, // records posted meanwhile wait in the stream
		Probe:   probe.Answers,
	}, log)

	opsServer.AddCheck("nats", func(context.Context) error { return server.Healthy() })
	opsServer.AddCheck("engine", func(ctx context.Context) error {
		serves, cancel := context.WithTimeout(ctx, 10*time.Millisecond) // Ready waits; a check must not
		defer cancel()
		if err := supervisor.Ready(serves); err != nil {
			return err
		}
		return probe.Works(ctx)
	})

	// Two connections: publishing does not queue behind reading.
	counted := dial.NewMetrics(opsServer.Registry())
	publishing, err := server.Connect(as(users, "api").Options(log, counted)...)
	if err != nil {
		return err
	}
	defer publishing.Close()
	reading, err := server.Connect(as(users, "ingester").Options(log, counted)...)
	if err != nil {
		return err
	}
	defer reading.Close()
	kept := u.Streams
	kept.Trouble = server.Trouble
	publishTo, err := stream.New(publishing, kept, log, opsServer.Registry())
	if err != nil {
		return err
	}
	readFrom, err := publishTo.Over(reading)
	if err != nil {
		return err
	}
	service := &run.API{Config: u.API, Memory: u.Memory / 3, FingerprintKey: filepath.Join(u.Data, "fingerprint.key"), Auth: auth.Config{Tokens: tokens}}
	ingester := &run.Ingester{Ingest: u.Ingest, Memory: u.Memory / 3 * 2, Business: u.Business, Retention: u.Retention, ClickHouse: run.ClickHouse{Warehouse: warehouse.Config{URL: address}}, Streams: u.Streams}
	if err := run.WriteAddresses(u.Data, "url=http://"+u.API.Listen, "exporters=http://"+cmp.Or(u.API.Elastic, "127.0.0.1:9200"), "nats=nats://"+u.NATS, "clickhouse=clickhouse://default@"+u.ClickHouse+"/flow",
		"clickhouse-http="+cmp.Or(u.ClickHouseHTTP, "127.0.0.1:8123"), "watch="+u.Ops); err != nil {
		return err
	}
	page, link, err := u.page(server, users, tokens, opsServer, log)
	if err != nil {
		return err
	}
	engineAnswers := func(ctx context.Context) error {
		if err := supervisor.Ready(ctx); err != nil {
			<-ctx.Done() // stopped, or the supervisor returns its error
			return ctx.Err()
		}
		u.greet(os.Stdout, link)
		return nil
	}
	serve, err := service.Serve(publishTo, opsServer, log)
	if err != nil {
		return err
	}
	return run.RunInOrder(ctx,
		page,
		serve,
		ingester.Work(readFrom, engineAnswers, opsServer, log),
		opsServer.Run,
		supervisor.Run,
	)
}

// greet prints the addresses and the first commands. Its output may be logged, so it
// names the token file, not the token. The console link signs in once, within an hour.
func (u *up) greet(w io.Writer, link string) {
	fmt.Fprintf(w, `
%[1]s  api         http://%[2]s
  metrics     http://%[3]s/metrics
  NATS        nats://%[4]s
  ClickHouse  %[5]s (native)  http://%[6]s (HTTP)
%[7]s  data        %[8]s (passwords in secrets/; without a password ClickHouse is read-only)

Post a record:
  curl -s http://%[2]s/flow/flowRecord/batch -H "Authorization: Bearer $(cat %[9]s)" -H 'Content-Type: application/json' -d '{"id":"hello-%[10]d","key":1,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","timestamp":%[10]d,"value":{"bpmnProcessId":"hello","processInstanceKey":"1"}}'

Query it:
  curl -s http://%[6]s/ --data-binary 'SELECT * FROM flow.v_records WHERE id = '"'hello-%[10]d'"' FORMAT Vertical'

See the metrics:
  curl -s http://%[3]s/metrics | grep ^sluice_

Ctrl-C drains and exits; the next start resumes.

`, consoleLines(link, aroundHere()), u.API.Listen, u.Ops, u.NATS, u.ClickHouse, u.ClickHouseHTTP, u.elasticLine(), u.Data,
		shellQuote(filepath.Join(u.Data, "token")), time.Now().UnixMilli())
}

// page returns the console of this machine and its one-time sign-in link. The console
// scrapes the ops port, like that of any api and ingester.
func (u *up) page(server *embedded.Server, users []embedded.User, tokens string, ops *ops.Server, log *slog.Logger) (service run.Service, link string, err error) {
	if u.Console == "" {
		return func(ctx context.Context) error { <-ctx.Done(); return nil }, "", nil
	}
	reg := prometheus.NewRegistry() // its stream metrics would collide with the api's and the ingester's
	nc, err := server.Connect(as(users, "console").Options(log, dial.NewMetrics(reg))...)
	if err != nil {
		return nil, "", err
	}
	lanes, err := stream.New(nc, u.Streams, log, reg)
	if err != nil {
		return nil, "", err
	}
	known, err := run.NewTokens(tokens, log)
	if err != nil {
		return nil, "", err
	}
	shown := &run.Console{Page: console.Config{Listen: u.Console, Shown: u.Shown}, Watch: []string{u.Ops}, Operator: run.Operator{Data: u.Data},
		ClickHouse: run.ClickHouse{Warehouse: warehouse.Config{URL: (&url.URL{Scheme: "clickhouse", Host: u.ClickHouse, Path: "/flow"}).String()}}}
	posts := addresses{URL: "http://" + u.API.Listen, Exporters: "http://" + cmp.Or(u.API.Elastic, "127.0.0.1:9200")}
	shown.Sources = sourceTokens{tokenFile{Tokens: tokens}, posts}
	page, closing, err := shown.New(lanes, known, log, ops.Registry())
	if err != nil {
		return nil, "", err
	}
	address, err := page.Listen()
	if err != nil {
		return nil, "", err
	}
	ops.AddCheck("console", page.Check)
	token, err := u.keptToken()
	if err != nil {
		return nil, "", err
	}
	return func(ctx context.Context) error {
		defer nc.Close()
		defer closing()
		return run.RunInOrder(ctx, page.Run, known.Run, lanes.Run)
	}, "http://" + address.String() + page.Link(token), nil
}

func (u *up) elasticLine() string {
	if u.API.Elastic == "" {
		return ""
	}
	return fmt.Sprintf("  exporters   http://%s (as Elasticsearch: any user name, the access token as password)\n", u.API.Elastic)
}

func shellQuote(name string) string {
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-") == "" {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

// addressPatience bounds the wait for addresses that a killed previous run still uses.
const addressPatience = 3 * time.Second

// checkAddresses fails before anything is started, and names the option to change.
func (u *up) checkAddresses(ctx context.Context) error {
	deadline := time.Now().Add(addressPatience)
	for _, a := range []struct{ flag, address string }{
		{"http", u.API.Listen}, {"ops", u.Ops}, {"nats", u.NATS}, {"clickhouse", u.ClickHouse}, {"clickhouse-http", u.ClickHouseHTTP}, {"console", u.Console}, {"elasticsearch", u.API.Elastic},
	} {
		if a.address == "" {
			continue
		}
		if strings.HasPrefix(a.flag, "clickhouse") && !u.Private {
			if err := engine.OnLoopback(a.address); err != nil {
				return fmt.Errorf("--%s: %w", a.flag, err)
			}
		}
		listener, err := net.Listen("tcp", a.address)
		for errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(deadline) && ctx.Err() == nil {
			time.Sleep(50 * time.Millisecond)
			listener, err = net.Listen("tcp", a.address)
		}
		if err != nil {
			return fmt.Errorf("--%s %s: %w: stop the process that uses it, or choose another address", a.flag, a.address, errors.Unwrap(err))
		}
		listener.Close()
	}
	return nil
}

// secrets is the folder of the passwords of ClickHouse's and NATS's users.
func (u *up) secrets() string { return filepath.Join(u.Data, "secrets") }

// prepareData creates the data folder, its passwords and its access token, and returns
// the name of the api's token file. Tokens already in that file stay.
func (u *up) prepareData() (tokens string, err error) {
	if err := run.MakeFolder(u.Data); err != nil {
		return "", fmt.Errorf("--data: %w", err)
	}
	if id, err := os.ReadFile(filepath.Join(u.Data, restoringName)); err == nil {
		return "", fmt.Errorf("--data: the restore of backup %s into %s is incomplete: resume it with sluice restore, or delete the folder", strings.TrimSpace(string(id)), u.Data)
	}
	if err := u.makeSecrets(); err != nil {
		return "", fmt.Errorf("--data: %w", err)
	}
	token, err := u.keptToken()
	if err != nil {
		return "", fmt.Errorf("--data: %w", err)
	}
	tokens = filepath.Join(u.Data, tokensName)
	local := auth.Entry{Subject: localSubject, SHA256: auth.Digest(token), Scopes: flow.Scopes()}
	err = auth.Edit(tokens, func(all []auth.Entry) ([]auth.Entry, error) {
		if slices.ContainsFunc(all, func(e auth.Entry) bool { return e.Subject == localSubject && e.SHA256 == local.SHA256 }) {
			return all, nil
		}
		return append(slices.DeleteFunc(all, func(e auth.Entry) bool { return e.Subject == localSubject }), local), nil
	})
	if err != nil {
		return "", fmt.Errorf("--data: %w", err)
	}
	return tokens, nil
}

const (
	tokensName   = "tokens.yaml" // the token file, in the data folder
	localSubject = "local"       // subject of the token of sluice up itself, which has every scope
)

func (u *up) makeSecrets() error {
	return run.MakeSecrets(u.secrets(), run.SecretAdmin, run.SecretIngester, run.SecretAnalyst, run.SecretModeller, run.SecretConsole,
		run.SecretNATSAPI, run.SecretNATSIngester, run.SecretNATSOperator, run.SecretNATSConsole)
}

func (u *up) keptToken() (string, error) {
	file := filepath.Join(u.Data, "token")
	if u.Token != "" {
		return u.Token, os.WriteFile(file, []byte(u.Token+"\n"), 0o600)
	}
	kept, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		token := auth.NewToken()
		return token, os.WriteFile(file, []byte(token+"\n"), 0o600)
	}
	return strings.TrimSpace(string(kept)), err
}

func (u *up) engineArgs(file string) []string {
	format := "json"
	if run.IsTerminal(os.Stderr) {
		format = "text"
	}
	args := []string{"--log", format, "clickhouse", "--data", filepath.Join(u.Data, "clickhouse"), "--listen", u.ClickHouse,
		"--http", u.ClickHouseHTTP, "--clickhouse-library", file, "--secrets", u.secrets(),
		"--analyst-memory", strconv.FormatInt(u.Analyst.Memory, 10), "--analyst-time", u.Analyst.Time.String(),
		"--analyst-rows", strconv.FormatInt(u.Analyst.Rows, 10),
		"--modeller-memory", strconv.FormatInt(u.Modeller.Memory, 10), "--modeller-time", u.Modeller.Time.String(),
		"--modeller-rows", strconv.FormatInt(u.Modeller.Rows, 10), "--models-bytes", strconv.FormatInt(u.Models, 10),
		"--analysts-memory", strconv.FormatInt(u.Analysts, 10), "--clickhouse-slots", strconv.Itoa(u.Slots), "--clickhouse-kept-slots", strconv.Itoa(u.Kept)}
	if u.Private {
		args = append(args, "--private")
	}
	if u.AllowFiles {
		args = append(args, "--allow-files")
	}
	return args
}

// withoutOurs is the environment without this program's settings: the child process
// gets flags instead.
func withoutOurs(environ []string) []string {
	var kept []string
	for _, entry := range environ {
		if !strings.HasPrefix(entry, run.EnvPrefix+"_") {
			kept = append(kept, entry)
		}
	}
	return kept
}
