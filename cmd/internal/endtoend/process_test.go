package endtoend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sluice/pkg/embedded/clickhouse/library"
)

// bin holds the programs under test, built once for the whole package.
var bin string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "sluice-bin-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		build := exec.Command("go", "build", "-o", dir, "sluice/cmd/api", "sluice/cmd/ingester", "sluice/cmd/sluice")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
		if err := linkEngine(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		bin = dir
		return m.Run()
	}())
}

// linkEngine puts the engine next to the programs, as make build does.
func linkEngine(dir string) error {
	file, err := library.Fetched()
	if err != nil {
		return err
	}
	return os.Symlink(file, filepath.Join(dir, filepath.Base(file)))
}

// process is a program that was started and whose output is kept.
type process struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // of Wait, valid once exited is closed

	mu     sync.Mutex
	output bytes.Buffer // standard output and error, interleaved
}

// start runs a program with args; the test's end kills it if it still runs.
func start(t *testing.T, program string, args ...string) *process {
	t.Helper()
	return startWith(t, nil, program, args...)
}

// startWith is start with further variables in the environment.
func startWith(t *testing.T, env []string, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: program, cmd: exec.Command(filepath.Join(bin, program), args...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.Env = append(cleanEnv(program), env...)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("output of %s:\n%s", strings.Join(p.cmd.Args, " "), p.text())
		}
	})
	return p
}

// run runs a program to its end and returns its exit status and output.
func run(t *testing.T, program string, args ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, program), args...)
	cmd.Env = cleanEnv(program)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s %v: %v", program, args, err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// cleanEnv is the environment without settings meant for another program.
func cleanEnv(program string) []string {
	var env []string
	for _, entry := range os.Environ() {
		ours := strings.HasPrefix(entry, "SLUICE_")
		if !ours || program == "sluice" && strings.HasPrefix(entry, "SLUICE_CLICKHOUSE_LIBRARY=") {
			env = append(env, entry)
		}
	}
	return env
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.Write(b)
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// signal sends a signal to the process itself.
func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("signal %s: %v", p.name, err)
	}
}

// kill ends the process without warning and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // already gone is fine
	<-p.exited
}

// stop asks for a graceful end and returns the exit status.
func (p *process) stop() int {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	return p.wait(15 * time.Second)
}

func (p *process) wait(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		p.t.Fatalf("%s still runs after %v:\n%s", p.name, limit, p.text())
		return -1
	}
}

// eventually polls until check returns no error.
func eventually(t *testing.T, limit time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still after %v: %v", limit, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
