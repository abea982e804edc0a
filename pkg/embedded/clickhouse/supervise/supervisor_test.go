package supervise_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/embedded/clickhouse/supervise"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// envParent makes the test binary a supervisor of the engine of its Config, to be killed.
const envParent = "CLICKHOUSE_TEST_PARENT"

func TestMain(m *testing.M) {
	if config := os.Getenv(envParent); config != "" {
		var cfg supervise.Config
		if err := json.Unmarshal([]byte(config), &cfg); err != nil {
			panic(err)
		}
		supervise.New(cfg, slog.New(slog.NewTextHandler(os.Stderr, nil))).Run(context.Background())
		return
	}
	clickhousetest.Main(m)
}

// output collects the output of processes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

var pidInLog = regexp.MustCompile(`engine process started" pid=(\d+)`)

// pids are the processes a Supervisor has started, from its log.
func (o *output) pids(t *testing.T) (pids []int) {
	t.Helper()
	for _, match := range pidInLog.FindAllStringSubmatch(o.String(), -1) {
		pid, err := strconv.Atoi(match[1])
		fatal.If(t, err)
		pids = append(pids, pid)
	}
	return pids
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		fatal.When(t, time.Now().After(deadline), "never: %s", what)
	}
}

func open(t *testing.T, address string) driver.Conn {
	t.Helper()
	options, err := clickhouse.ParseDSN(address)
	fatal.If(t, err)
	c, err := clickhouse.Open(options)
	fatal.If(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// gone reports whether a process has ended.
func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// freeAddress is an address without a listener.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer l.Close()
	return l.Addr().String()
}

// supervised is a Config for an engine with an empty data folder.
func supervised(t *testing.T) (cfg supervise.Config, address string, out *output) {
	t.Helper()
	serve := server.Config{Data: t.TempDir(), Listen: freeAddress(t)}
	out = new(output)
	cfg.Executable, cfg.Env = clickhousetest.Command(t, serve)
	cfg.Output = out
	return cfg, "clickhouse://default@" + serve.Listen + "/default", out
}

// runs runs a Supervisor: ready waits until its engine serves, stop until it has ended.
func runs(t *testing.T, s *supervise.Supervisor, out *output) (ready, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	ready = func() {
		t.Helper()
		bound, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := s.Ready(bound); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return ready, stop
}

func TestSupervisorRestartsAnEngineThatDies(t *testing.T) {
	cfg, address, out := supervised(t)
	registry := prometheus.NewRegistry()
	cfg.Metrics = registry
	s := supervise.New(cfg, slog.New(slog.NewTextHandler(out, nil)))
	ready, stop := runs(t, s, out)
	ready()
	c := open(t, address)
	for _, sql := range []string{"CREATE TABLE t (a Int64) ENGINE = MergeTree ORDER BY a", "INSERT INTO t VALUES (1)"} {
		fatal.If(t, c.Exec(t.Context(), sql))
	}
	for kill := range 3 {
		pids := out.pids(t)
		fatal.If(t, syscall.Kill(pids[len(pids)-1], syscall.SIGKILL))
		eventually(t, "another engine starts", func() bool { return len(out.pids(t)) == len(pids)+1 })
		ready()
		eventually(t, "the driver's pool has lost its dead connection", func() bool { return c.Ping(t.Context()) == nil })
		var n uint64
		if err := c.QueryRow(t.Context(), "SELECT count() FROM t").Scan(&n); err != nil || n != 1 {
			t.Errorf("after kill %d: got %d rows, %v, want 1", kill, n, err)
		}
	}
	const want = `
# HELP sluice_clickhouse_engine_restarts_total Restarts of the embedded ClickHouse engine after it died.
# TYPE sluice_clickhouse_engine_restarts_total counter
sluice_clickhouse_engine_restarts_total 3
# HELP sluice_clickhouse_engine_up 1 while the embedded ClickHouse engine answers; 0 while it starts, is dead, or has not answered for 4 s.
# TYPE sluice_clickhouse_engine_up gauge
sluice_clickhouse_engine_up 1
`
	expect.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(want)))
	stop()
	for _, pid := range out.pids(t) {
		expect.Not(t, !gone(pid), "process %d lives on", pid)
	}
	expect.Not(t, !strings.Contains(out.String(), "engine is closed"), "the engine was not closed, or its log did not come through:\n%s", out)
	if err := s.Ready(t.Context()); err == nil {
		t.Error("ready after the end")
	}
}

func TestSupervisorGivesUpOnAnEngineThatNeverServed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer taken.Close()
	e := clickhousetest.Shared(t)
	for name, c := range map[string]struct {
		cfg  server.Config
		want string
	}{
		"a port in use":               {server.Config{Data: t.TempDir(), Listen: taken.Addr().String()}, "address already in use"},
		"an address without password": {server.Config{Data: t.TempDir(), Listen: "0.0.0.0:0"}, "set --private"},
		"a folder in use":             {server.Config{Data: e.Data(), Listen: "127.0.0.1:0"}, "is in use by another process"},
		"an impossible folder":        {server.Config{Data: os.DevNull + "/data", Listen: "127.0.0.1:0"}, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			out := new(output)
			var cfg supervise.Config
			cfg.Executable, cfg.Env = clickhousetest.Command(t, c.cfg)
			cfg.Output = out
			s := supervise.New(cfg, slog.New(slog.NewTextHandler(out, nil)))
			err := s.Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Run: %v, want %q", err, c.want)
			}
			if ready := s.Ready(t.Context()); ready != err {
				t.Errorf("Ready: %v, want %v", ready, err)
			}
		})
	}
}

// TestSupervisorInsists: a program with other work continues without the engine, and gets it as
// soon as possible.
func TestSupervisorInsists(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer taken.Close()
	out := new(output)
	cfg := supervise.Config{Insist: true, Backoff: 20 * time.Millisecond, MaxBackoff: 100 * time.Millisecond, Output: out}
	cfg.Executable, cfg.Env = clickhousetest.Command(t, server.Config{Data: t.TempDir(), Listen: taken.Addr().String()})
	s := supervise.New(cfg, slog.New(slog.NewTextHandler(out, nil)))
	ready, stop := runs(t, s, out)
	eventually(t, "it is tried again", func() bool { return len(out.pids(t)) > 1 })
	taken.Close()
	ready()
	stop()
}

// TestSupervisorKillsAnEngineThatHangs: the process runs, and does not answer. Its silence is
// shown and logged long before it is killed.
func TestSupervisorKillsAnEngineThatHangs(t *testing.T) {
	t.Parallel()
	cfg, address, out := supervised(t)
	c := open(t, address)
	cfg.Probe = func(ctx context.Context) error { return c.Exec(ctx, "SELECT 1") }
	cfg.ProbeEvery, cfg.ProbeLimit, cfg.Silent = 50*time.Millisecond, 2*time.Second, 6*time.Second
	reg := prometheus.NewRegistry()
	cfg.Metrics = reg
	s := supervise.New(cfg, slog.New(slog.NewTextHandler(out, nil)))
	ready, stop := runs(t, s, out)
	ready()
	up := func(want int) bool {
		return testutil.GatherAndCompare(reg, strings.NewReader(fmt.Sprintf("# HELP %[1]s 1 while the embedded ClickHouse engine answers; 0 while it starts, is dead, or has not answered for 4 s.\n# TYPE %[1]s gauge\n%[1]s %[2]d\n",
			"sluice_clickhouse_engine_up", want)), "sluice_clickhouse_engine_up") == nil
	}
	expect.Not(t, !up(1), "an engine that answers is not up")
	hung := out.pids(t)[0]
	fatal.If(t, syscall.Kill(hung, syscall.SIGSTOP))
	eventually(t, "it is not up", func() bool { return up(0) })
	expect.Not(t, gone(hung) || !strings.Contains(out.String(), "the engine does not answer; records wait in the stream"), "silent, and killed at once or not logged:\n%s", out)
	eventually(t, "it is killed", func() bool { return gone(hung) })
	ready()
	stop()
}

func TestEngineDiesWithAKilledParent(t *testing.T) {
	cfg, address, _ := supervised(t)
	cfg.Output = nil
	config, err := json.Marshal(cfg)
	fatal.If(t, err)
	out := new(output)
	parent := exec.Command(os.Args[0])
	parent.Env, parent.Stderr = append(os.Environ(), envParent+"="+string(config)), out
	fatal.If(t, parent.Start())
	c := open(t, address)
	eventually(t, "the engine serves", func() bool { return c.Ping(t.Context()) == nil })
	parent.Process.Kill()
	parent.Process.Wait() // not parent.Wait: its output ends with the engine
	eventually(t, "the engine is gone", func() bool { return gone(out.pids(t)[0]) })
}

// TestEngineDiesWithItsLifeline is the same without the kernel's help, which only Linux offers.
func TestEngineDiesWithItsLifeline(t *testing.T) {
	cfg, _, out := supervised(t)
	lifeline, hold, err := os.Pipe()
	fatal.If(t, err)
	news, notify, err := os.Pipe()
	fatal.If(t, err)
	child := exec.Command(cfg.Executable)
	child.Env, child.Stderr = append(cfg.Env, "EMBEDDED_CLICKHOUSE_SUPERVISED=1"), out
	child.ExtraFiles = []*os.File{lifeline, notify}
	fatal.If(t, child.Start())
	notify.Close()
	lifeline.Close()
	if _, err := bufio.NewReader(news).ReadString('\n'); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	hold.Close()
	if err := child.Wait(); err == nil || !strings.Contains(out.String(), "the process that started the engine is gone") {
		t.Errorf("the engine ended with %v:\n%s", err, out)
	}
}
