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
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/fatal"
)

const (
	envServe  = "CLICKHOUSETEST_SERVE"  // holds the Config of the engine this process shall be
	envAttach = "CLICKHOUSETEST_ATTACH" // says that it ends with its input, which Start holds
)

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
	if os.Getenv(envAttach) != "" {
		go func() {
			io.Copy(io.Discard, os.Stdin)
			os.Exit(3)
		}()
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
	process *exec.Cmd
	input   io.Closer // the process ends when it is closed
	log     *tail
}

// Start starts an engine with an empty data folder and stops it after the test.
// Options change its Config; addresses and data folder are chosen by Start.
func Start(t testing.TB, options ...func(*server.Config)) *Engine {
	t.Helper()
	e := newEngine(t, t.TempDir(), options)
	t.Cleanup(e.stop)
	return e
}

func newEngine(t testing.TB, data string, options []func(*server.Config)) *Engine {
	t.Helper()
	e := &Engine{t: t, cfg: server.Config{Data: data, Listen: "127.0.0.1:0", HTTP: "127.0.0.1:0"}}
	for _, option := range options {
		option(&e.cfg)
	}
	e.start(t)
	return e
}

// start starts the process and waits until it answers.
func (e *Engine) start(t testing.TB) {
	t.Helper()
	executable, env := Command(t, e.cfg)
	e.process, e.log = exec.Command(executable), new(tail)
	e.process.Env = append(env, envAttach+"=1")
	e.process.Stderr = e.log
	var err error
	if e.input, err = e.process.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	output, err := e.process.StdoutPipe()
	fatal.If(t, err)
	if err := e.process.Start(); err != nil {
		t.Fatalf("start the engine: %v", err)
	}
	timeout := time.AfterFunc(60*time.Second, func() { e.process.Process.Kill() })
	defer timeout.Stop()
	line, err := bufio.NewReader(output).ReadString('\n')
	if _, scanErr := fmt.Sscanf(line, "ready %s %s", &e.cfg.Listen, &e.cfg.HTTP); err != nil || scanErr != nil {
		e.process.Process.Kill()
		e.process.Wait()
		t.Fatalf("the engine did not start:\n%s", e.log)
	}
}

// stop ends the process the gentle way, and if that takes too long the other one.
func (e *Engine) stop() {
	if e.process == nil {
		return
	}
	e.process.Process.Signal(syscall.SIGTERM)
	timeout := time.AfterFunc(15*time.Second, func() { e.process.Process.Kill() })
	e.process.Wait()
	timeout.Stop()
	e.process = nil
}

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
func (e *Engine) PID() int { return e.process.Process.Pid }

// Kill ends the engine with SIGKILL and returns when it is dead.
func (e *Engine) Kill() {
	e.t.Helper()
	if err := e.process.Process.Kill(); err != nil {
		e.t.Fatalf("kill the engine: %v", err)
	}
	e.process.Wait()
	e.process = nil
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

// Log is what the engine's process last wrote.
func (e *Engine) Log() string { return e.log.String() }

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
		shared.engine = newEngine(t, data, nil)
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

// tail keeps the last of what a process writes.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - tailSize; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
