package programtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Process is a program that is started, stopped, and started again. It dies with this
// process. What it writes is in a file, so that a test that fails can show the end of it,
// and a run of hours costs no memory.
type Process struct {
	Name string
	Log  string // file that the output is appended to
	Ops  string // address of its ops port; empty when it has none

	// Cmd is what the next start runs: path, arguments, folder, attributes, and
	// environment; without one it gets Environ.
	Cmd *exec.Cmd

	// Ended is called when the process ends without being asked to; may be nil.
	Ended func(p *Process, state string)

	mu  sync.Mutex
	run *run // the latest; nil before the first start
}

// run is one run of a program. Its marks belong to the mutex of the Process.
type run struct {
	cmd    *exec.Cmd
	exited chan struct{}
	told   bool // it was asked to end
	shot   bool // it was killed
}

// New describes a program that writes to a log of its name in dir. It is not started.
func New(dir, name, program string, args ...string) *Process {
	return &Process{Name: name, Log: filepath.Join(dir, name+".log"), Cmd: exec.Command(program, args...)}
}

// lastWords is how long the output of a process is waited for after its end. What
// it has started holds the other end of the same pipe: so the process counts as
// ended only when that has ended too, and its addresses and folders are free.
const lastWords = 10 * time.Second

// Start starts the program unless it runs.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		return nil
	}
	file, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{Path: p.Cmd.Path, Args: p.Cmd.Args, Env: p.Cmd.Env, Dir: p.Cmd.Dir, SysProcAttr: p.Cmd.SysProcAttr, Err: p.Cmd.Err}
	if cmd.Env == nil {
		cmd.Env = Environ()
	}
	out := struct{ io.Writer }{file} // no *os.File, which the program would hold itself
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, out, lastWords
	dieWithUs(cmd)
	if err := cmd.Start(); err != nil {
		file.Close()
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	r := &run{cmd: cmd, exited: make(chan struct{})}
	p.run = r
	go func() {
		_ = cmd.Wait() // its state says more
		file.Close()
		close(r.exited)
		p.mu.Lock()
		told := r.told
		p.mu.Unlock()
		if !told && p.Ended != nil {
			p.Ended(p, cmd.ProcessState.String())
		}
	}()
	return nil
}

// Environ is the environment without settings of Sluice, but for the named ones.
func Environ(but ...string) []string {
	var env []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "SLUICE_") || slices.Contains(but, name) {
			env = append(env, entry)
		}
	}
	return env
}

// running needs mu.
func (p *Process) running() bool {
	if p.run == nil {
		return false
	}
	select {
	case <-p.run.exited:
		return false
	default:
		return true
	}
}

// latest is the run that was started last. It panics before the first start.
func (p *Process) latest() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run == nil {
		panic(p.Name + " was never started")
	}
	return p.run
}

// PID is the number of the process.
func (p *Process) PID() int { return p.latest().cmd.Process.Pid }

// Exited is closed when the process that was started last has ended.
func (p *Process) Exited() <-chan struct{} { return p.latest().exited }

// Status is its exit status, -1 after a signal. It is valid once it has ended.
func (p *Process) Status() int { return p.latest().cmd.ProcessState.ExitCode() }

// Signal sends a signal, unless the process has ended or was asked to.
func (p *Process) Signal(sig syscall.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running() && !p.run.told && p.run.cmd.Process.Signal(sig) == nil
}

// Pause stops the process where it is, its connections open, and tells whether it ran. It
// returns once all threads stand, where Linux tells.
func (p *Process) Pause() bool {
	if !p.Signal(syscall.SIGSTOP) {
		return false
	}
	for range 10_000 {
		if stands(p.PID()) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

func stands(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, name := range threads {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		if _, state, ok := strings.Cut(string(stat), ") "); ok && !strings.HasPrefix(state, "T") && !strings.HasPrefix(state, "Z") {
			return false
		}
	}
	return true
}

// Resume lets a paused process go on.
func (p *Process) Resume() { p.Signal(syscall.SIGCONT) }

// Kill ends the process without warning, waits until it is gone, and tells whether it
// ran.
func (p *Process) Kill() bool {
	ran, _ := p.end(syscall.SIGKILL)
	return ran
}

// Grace is how long a process may take to stop.
const Grace = 15 * time.Second

// Stop ends the process, also a paused one, and waits for it. The error says how it
// ended, if not by itself, in time, and with status 0. That it does not run is none.
func (p *Process) Stop() error {
	_, err := p.end(syscall.SIGTERM)
	return err
}

// end sends a signal that ends the process, and waits. That another goroutine killed it
// meanwhile is no error.
func (p *Process) end(sig syscall.Signal) (ran bool, err error) {
	p.mu.Lock()
	r := p.run
	if !p.running() {
		p.mu.Unlock()
		return false, nil
	}
	r.told, r.shot = true, r.shot || sig == syscall.SIGKILL
	_ = r.cmd.Process.Signal(sig) // it may have ended
	_ = r.cmd.Process.Signal(syscall.SIGCONT)
	p.mu.Unlock()
	inTime := true
	select {
	case <-r.exited:
	case <-time.After(Grace):
		inTime = false
		_ = r.cmd.Process.Kill()
		<-r.exited
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case r.shot || inTime && r.cmd.ProcessState.Success():
		return true, nil
	case !inTime:
		return true, fmt.Errorf("%s did not stop within %v, see %s", p.Name, Grace, p.Log)
	}
	return true, fmt.Errorf("%s did not stop cleanly: %v, see %s", p.Name, r.cmd.ProcessState, p.Log)
}

// Wait waits until the process ends by itself, and returns its exit status.
func (p *Process) Wait(limit time.Duration) (int, error) {
	select {
	case <-p.Exited():
		return p.Status(), nil
	case <-time.After(limit):
		return -1, fmt.Errorf("%s still runs after %v", p.Name, limit)
	}
}

// Replace stops the process, which must end well, starts the program of the same name
// in the folder bin, and waits until it is ready: a step of a rolling restart.
func (p *Process) Replace(ctx context.Context, bin string) error {
	if err := p.Stop(); err != nil {
		return err
	}
	p.Cmd.Path = filepath.Join(bin, filepath.Base(p.Cmd.Path))
	p.Cmd.Args[0] = p.Cmd.Path
	if err := p.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return p.Ready(ctx)
}

// Ready waits until the process says that it is ready. One without an ops port is not
// asked.
func (p *Process) Ready(ctx context.Context) error {
	if p.Ops == "" {
		return nil
	}
	for {
		err := AnswersOK(ctx, "http://"+p.Ops+"/readyz")
		if err == nil {
			return nil
		}
		select {
		case <-p.Exited():
			return fmt.Errorf("%s has ended: exit status %d, see %s", p.Name, p.Status(), p.Log)
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", p.Name, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// asking keeps no connection, since servers come and go.
var asking = &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// AnswersOK asks once, and says what was answered instead of 200.
func AnswersOK(ctx context.Context, url string) error {
	page, err := get(ctx, url)
	if err != nil && page != "" {
		err = fmt.Errorf("%w: %s", err, page)
	}
	return err
}

func get(ctx context.Context, url string) (page string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := asking.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = errors.New(res.Status)
	}
	return strings.TrimSpace(string(body)), err
}

// Metrics are the values at the ops port, by name with labels.
func (p *Process) Metrics(ctx context.Context) (map[string]float64, error) {
	page, err := get(ctx, "http://"+p.Ops+"/metrics")
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", p.Name, err)
	}
	all := map[string]float64{}
	for line := range strings.Lines(page) {
		var v float64
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			if _, err := fmt.Sscan(line[i:], &v); err == nil {
				all[line[:i]] = v
			}
		}
	}
	return all, nil
}

// Output is all that the program has written, in all runs.
func (p *Process) Output() string {
	said, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	return string(said)
}

// Tail is the end of the output, without the ends of long lines.
func (p *Process) Tail(lines int) string {
	const width = 400
	all := strings.Split(strings.TrimSpace(p.Output()), "\n")
	all = all[max(0, len(all)-lines):]
	for i, line := range all {
		if len(line) > width {
			all[i] = fmt.Sprintf("%s … (%d bytes more)", line[:width], len(line)-width)
		}
	}
	return strings.Join(all, "\n")
}

// shown is how many lines of a program are shown when a test has failed.
const shown = 15

// ShowIfFailed shows the last that the program has written if the test has failed. It
// goes out before what go test says of the test, so that the assertion which failed comes
// last. All of it stays in the folder of artifacts, where there is one (go test
// -artifacts).
func (p *Process) ShowIfFailed(t testing.TB) {
	if !t.Failed() || p.run == nil {
		return
	}
	fmt.Printf("=== %s: the end of what %s (%s) wrote:\n%s\n", t.Name(), p.Name, strings.Join(p.Cmd.Args, " "), p.Tail(shown))
	keep(t, filepath.Base(filepath.Dir(p.Log))+"-"+p.Name+".log", p.Output())
}
