// Package clickhousetest gives tests the real ClickHouse engine, in a process that a test
// may kill.
//
// The engine runs in a second execution of the test binary, so a package that uses it has
//
//	func TestMain(m *testing.M) { clickhousetest.Main(m) }
//
// and its tests call FreshDatabase (one engine per package, one database per test), or
// Start (an engine per test, to be killed). A missing engine fails the test.
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

// envServe holds the engine's Config in its process.
const envServe = "CLICKHOUSETEST_SERVE"

// Main runs the tests of a package, or, in a process of Start, the engine.
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

// Command is the program and environment of an engine process, for tests of code that starts
// the engine itself.
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

// serve runs the engine's process.
func serve(config string) {
	var cfg server.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		fail(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { // ends with a test binary that timed out, which sends no signal
		for parent := os.Getppid(); os.Getppid() == parent; time.Sleep(time.Second) {
		}
		os.Exit(1)
	}()
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
	said    int64 // bytes written by earlier processes
}

// Start starts an engine with an empty data folder and stops it after the test. Options
// change its Config, except addresses and data folder.
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

// stop ends the process by SIGTERM, after a timeout by SIGKILL.
func (e *Engine) stop() { _ = e.process.Stop() }

// URL is the address of a database, for a driver.
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

func (e *Engine) Data() string { return e.cfg.Data }

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

// Restart starts the engine again, on the same data and addresses, after stopping it if it
// runs.
func (e *Engine) Restart() {
	e.t.Helper()
	e.stop()
	e.start(e.t)
}

// Log is the output of the engine's process.
func (e *Engine) Log() string { return e.process.Output()[e.said:] }

var shared struct {
	sync.Mutex
	engine *Engine
	data   string
}

// Shared is the engine shared by the tests of a package. A test that kills it uses Start.
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

// FreshDatabase creates a database in the shared engine and drops it after the test. It
// returns its name and its address for a driver.
func FreshDatabase(t testing.TB) (name, address string) {
	t.Helper()
	e := Shared(t)
	name = fmt.Sprintf("test_%d", time.Now().UnixNano())
	Exec(t, e, "CREATE DATABASE "+name)
	t.Cleanup(func() { Exec(t, e, "DROP DATABASE "+name+" SYNC") })
	return name, e.URL(name)
}

// Exec runs a statement over HTTP and returns its output.
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
