package endtoend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/fatal"
	"sluice/pkg/programtest"
)

// bin has the programs under test, built once for the package.
var bin string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "sluice-endtoend-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		bin = filepath.Join(dir, "bin")
		if err := programtest.BuildPlain(context.Background(), bin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		migrated.dir = filepath.Join(dir, "migrated")
		return m.Run()
	}())
}

// process is a program that a test started.
type process struct {
	*programtest.Process
	t    *testing.T
	name string
}

// start runs a program. The end of the test kills it if it still runs.
func start(t *testing.T, program string, args ...string) *process {
	t.Helper()
	return startWith(t, nil, program, args...)
}

// startWith is start with further environment variables.
func startWith(t *testing.T, env []string, program string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, program), args...)
	cmd.Env = append(environ(program), env...)
	return &process{Process: programtest.Start(t, program, cmd, false), t: t, name: program}
}

// run runs a program to its end and returns its exit status, its output and then its log.
func run(t *testing.T, program string, args ...string) (int, string) {
	t.Helper()
	code, out, log := ran(t, program, args...)
	return code, out + log
}

// ran is run with a separate log, because a command may log warnings on a busy machine.
func ran(t *testing.T, program string, args ...string) (code int, out, log string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, program), args...)
	cmd.Env = environ(program)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	fatal.When(t, err != nil && !errors.As(err, &exit), "%s %v: %v", program, args, err)
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// environ returns the environment of a program; only sluice gets the engine's file.
func environ(program string) []string {
	if program == "sluice" {
		return programtest.Environ(library.EnvLibrary)
	}
	return programtest.Environ()
}

func (p *process) text() string { return p.Output() }

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if !p.Signal(sig) {
		p.t.Fatalf("%s does not run: signal %s not sent", p.name, sig)
	}
}

func (p *process) kill() { p.Kill() }

// stop stops the process gracefully and returns its exit status.
func (p *process) stop() int {
	p.t.Helper()
	if err := p.Stop(); err != nil {
		p.t.Log(err)
	}
	return p.Status()
}

func (p *process) wait(limit time.Duration) int {
	p.t.Helper()
	code, err := p.Wait(limit)
	fatal.If(p.t, err)
	return code
}

var eventually = programtest.Eventually
