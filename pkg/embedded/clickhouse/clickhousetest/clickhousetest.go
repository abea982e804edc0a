// Package clickhousetest gives tests the real ClickHouse engine, in a process
// of its own that a test may kill.
//
// The engine runs in the test binary, executed once more; so a package whose
// tests use it has
//
//	func TestMain(m *testing.M) { clickhousetest.Main(m) }
//
// and its tests call FreshDatabase (one engine for the package, a database of
// its own for each test), or Start (an engine of its own, for those that kill
// it). A missing engine fails the test and says how to install it.
package clickhousetest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/fatal"
	"sluice/pkg/programtest"
)

// envServe holds the Config of the engine this process shall be.
const envServe = "CLICKHOUSETEST_SERVE"

// Main runs the tests of a package, or, in the process that Start began, the engine.
func Main(m *testing.M) {
	if config := os.Getenv(envServe); config != "" {
		serve(config)
		return
	}
	code := m.Run()
	if shared.engine != nil {
		shared.engine.stop()
		os.RemoveAll(shared.data)
	}
	os.Exit(code)
}

// Command is how a process that is the engine is started: a program and its
// whole environment. It is for tests of what starts the engine by itself.
func Command(t testing.TB, cfg server.Config) (executable string, env []string) {
	t.Helper()
	if cfg.Library == "" {
		file, err := library.Fetched()
		fatal.If(t, err)
		cfg.Library = file
	}
	config, err := json.Marshal(cfg)
	fatal.If(t, err)
	return os.Args[0], append(os.Environ(), envServe+"="+string(config))
}

// serve is the engine's process.
func serve(config string) {
	var cfg server.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		fail(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	err := server.Serve(ctx, cfg, log, func(native, http net.Addr) {
		fmt.Printf("ready %s %s\n", native, http)
	})
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// Engine is an engine in a process of its own.
type Engine struct {
	t       testing.TB
	cfg     server.Config
	process *programtest.Process
	said    int64 // bytes that the processes before have written
}

// Start starts an engine with an empty data folder and stops it after the test.
// Options change its Config; addresses and data folder are chosen by Start.
func Start(t testing.TB, options ...func(*server.Config)) *Engine {
	t.Helper()
	e := newEngine(t, t.TempDir(), t.TempDir(), options)
	t.Cleanup(e.stop)
	return e
}

func newEngine(t testing.TB, data, logs string, options []func(*server.Config)) *Engine {
	t.Helper()
	e := &Engine{
		t: t, cfg: server.Config{Data: data, Listen: "127.0.0.1:0", HTTP: "127.0.0.1:0"},
		process: programtest.New(logs, "clickhouse", os.Args[0]),
	}
	for _, option := range options {
		option(&e.cfg)
	}
	e.start(t)
	return e
}

// start starts the process and waits until it answers.
func (e *Engine) start(t testing.TB) {
	t.Helper()
	_, e.process.Cmd.Env = Command(t, e.cfg)
	if info, err := os.Stat(e.process.Log); err == nil {
		e.said = info.Size()
	}
	fatal.If(t, e.process.Start())
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		for line := range strings.Lines(e.Log()) {
			if strings.HasSuffix(line, "\n") && scanned(line, "ready %s %s", &e.cfg.Listen, &e.cfg.HTTP) {
				return
			}
		}
		select {
		case <-e.process.Exited():
		default:
			if time.Now().Before(deadline) {
				continue
			}
			e.process.Kill()
		}
		t.Fatalf("the engine did not start:\n%s", e.process.Tail(50))
	}
}

func scanned(line, format string, into ...any) bool {
	n, _ := fmt.Sscanf(line, format, into...)
	return n == len(into)
}

// stop ends the process the gentle way, and if that takes too long the other one.
func (e *Engine) stop() { _ = e.process.Stop() }

// URL is the engine's address for a driver, with this database.
func (e *Engine) URL(database string) string {
	user := url.User(orDefault(e.cfg.User))
	if e.cfg.Password != "" {
		user = url.UserPassword(orDefault(e.cfg.User), e.cfg.Password)
	}
	return (&url.URL{Scheme: "clickhouse", User: user, Host: e.cfg.Listen, Path: "/" + database}).String()
}

func orDefault(user string) string {
	if user == "" {
		return "default"
	}
	return user
}

// Addr is the address of the native protocol, host:port.
func (e *Engine) Addr() string { return e.cfg.Listen }

// HTTP is the address of HTTP, http://host:port.
func (e *Engine) HTTP() string { return "http://" + e.cfg.HTTP }

// Data is the engine's data folder.
func (e *Engine) Data() string { return e.cfg.Data }

// PID is the engine's process.
func (e *Engine) PID() int { return e.process.PID() }

// Kill ends the engine with SIGKILL and returns when it is dead.
func (e *Engine) Kill() {
	e.t.Helper()
	if !e.process.Kill() {
		e.t.Fatal("the engine to be killed does not run")
	}
}

// Stop ends the engine with SIGTERM and returns when it is gone.
func (e *Engine) Stop() { e.stop() }

// Restart starts the engine again, on the same data and the same addresses. One
// that runs is stopped first.
func (e *Engine) Restart() {
	e.t.Helper()
	e.stop()
	e.start(e.t)
}

// Log is what the engine's process has written.
func (e *Engine) Log() string { return e.process.Output()[e.said:] }

var shared struct {
	sync.Mutex
	engine *Engine
	data   string
}

// Shared is the engine that the tests of a package share. Use Start for a test
// that kills it.
func Shared(t testing.TB) *Engine {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.engine == nil {
		data, err := os.MkdirTemp("", "clickhousetest")
		fatal.If(t, err)
		shared.data = data
		shared.engine = newEngine(t, filepath.Join(data, "engine"), data, nil)
	}
	return shared.engine
}

// FreshDatabase makes an empty database in the shared engine and drops it after
// the test. It returns its name and its address for a driver.
func FreshDatabase(t testing.TB) (name, address string) {
	t.Helper()
	e := Shared(t)
	name = fmt.Sprintf("test_%d", time.Now().UnixNano())
	Exec(t, e, "CREATE DATABASE "+name)
	t.Cleanup(func() { Exec(t, e, "DROP DATABASE "+name+" SYNC") })
	return name, e.URL(name)
}

// Exec runs a statement over HTTP and returns what it prints.
func Exec(t testing.TB, e *Engine, statement string) string {
	t.Helper()
	request, err := http.NewRequest(http.MethodPost, e.HTTP()+"/", strings.NewReader(statement))
	fatal.If(t, err)
	request.Header.Set("X-ClickHouse-User", orDefault(e.cfg.User))
	request.Header.Set("X-ClickHouse-Key", e.cfg.Password)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatalf("%.200s: %v", statement, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%.200s: status %d, %v: %s", statement, answer.StatusCode, err, text)
	}
	return string(text)
}
