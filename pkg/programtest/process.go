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

// Process is a program that is started, stopped, and restarted. It dies with this process.
// Its output is in a file, which costs no memory and can be shown when a test fails.
type Process struct {
	Name string
	Log  string // file that the output is appended to
	Ops  string // address of its ops port; empty: none

	// Cmd is the command of the next start; without an environment it gets Environ.
	Cmd *exec.Cmd

	// Ended is called when the process ends unexpectedly; may be nil.
	Ended func(p *Process, state string)

	mu  sync.Mutex
	run *run // the last; nil before the first start
}

// run is one run of a program. Its flags are guarded by the mutex of the Process.
type run struct {
	cmd       *exec.Cmd
	exited    chan struct{}
	signalled bool // a signal to end was sent
	shot      bool // it was killed
}

// New describes a program that logs to a file of its name in dir. Start starts it.
func New(dir, name, program string, args ...string) *Process {
	return &Process{Name: name, Log: filepath.Join(dir, name+".log"), Cmd: exec.Command(program, args...)}
}

// lastWords bounds the wait for the output after the end of a process. Its children hold the
// same pipe, so the process counts as ended only after them, when its addresses and folders
// are free.
const lastWords = 10 * time.Second

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
	out := struct{ io.Writer }{file} // not an *os.File, which the program would inherit
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, out, lastWords
	dieWithUs(cmd)
	if err := cmd.Start(); err != nil {
		file.Close()
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	r := &run{cmd: cmd, exited: make(chan struct{})}
	p.run = r
	go func() {
		_ = cmd.Wait() // see ProcessState
		file.Close()
		close(r.exited)
		p.mu.Lock()
		signalled := r.signalled
		p.mu.Unlock()
		if !signalled && p.Ended != nil {
			p.Ended(p, cmd.ProcessState.String())
		}
	}()
	return nil
}

// Environ is the environment without settings of Sluice, except the named ones, and without
// the GOGC with which make runs tests.
func Environ(but ...string) []string {
	var env []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if name != "GOGC" && !strings.HasPrefix(name, "SLUICE_") || slices.Contains(but, name) {
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

// latest is the last run. It panics before the first start.
func (p *Process) latest() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run == nil {
		panic(p.Name + " was never started")
	}
	return p.run
}

func (p *Process) PID() int { return p.latest().cmd.Process.Pid }

// Exited is closed when the last run has ended.
func (p *Process) Exited() <-chan struct{} { return p.latest().exited }

// Status is its exit status, -1 after a signal. It is valid once it has ended.
func (p *Process) Status() int { return p.latest().cmd.ProcessState.ExitCode() }

// Signal sends a signal, unless the process has ended or is ending.
func (p *Process) Signal(sig syscall.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running() && !p.run.signalled && p.run.cmd.Process.Signal(sig) == nil
}

// Pause suspends the process, its connections open, and reports whether it ran. On Linux it
// returns once all threads are stopped.
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

// Resume resumes a paused process.
func (p *Process) Resume() { p.Signal(syscall.SIGCONT) }

// Kill ends the process by SIGKILL, waits until it is gone, and reports whether it ran.
func (p *Process) Kill() bool {
	ran, _ := p.end(syscall.SIGKILL)
	return ran
}

// Grace bounds the end of a process.
const Grace = 15 * time.Second

// Stop ends the process, even a paused one, and waits for it. The error is how it ended,
// if not in time and with status 0; nil if it does not run.
func (p *Process) Stop() error {
	_, err := p.end(syscall.SIGTERM)
	return err
}

// end sends a signal that ends the process, and waits. A concurrent Kill is not an error.
func (p *Process) end(sig syscall.Signal) (ran bool, err error) {
	p.mu.Lock()
	r := p.run
	if !p.running() {
		p.mu.Unlock()
		return false, nil
	}
	r.signalled, r.shot = true, r.shot || sig == syscall.SIGKILL
	_ = r.cmd.Process.Signal(sig) // fails if it has ended
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

// Wait waits for the end of the process and returns its exit status.
func (p *Process) Wait(limit time.Duration) (int, error) {
	select {
	case <-p.Exited():
		return p.Status(), nil
	case <-time.After(limit):
		return -1, fmt.Errorf("%s still runs after %v", p.Name, limit)
	}
}

// Replace stops the process, which must succeed, starts the program of the same name in the
// folder bin, and waits until it is ready: a step of a rolling restart.
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

// Ready waits until the process is ready; immediately without an ops port.
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

// asking keeps no connections, since servers restart.
var asking = &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// AnswersOK requests url once and fails unless the status is 200.
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

// Metrics are the values of the ops port's metrics, by name with labels.
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

// Output is the output of all runs.
func (p *Process) Output() string {
	said, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	return string(said)
}

// Tail is the end of the output, with long lines truncated.
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

// shown is the number of lines shown of a program when a test fails.
const shown = 15

// ShowIfFailed prints the end of the output if the test has failed. It precedes the output of
// go test, so that the failed assertion comes last. All of it is kept in the folder of
// artifacts, if there is one (go test -artifacts).
func (p *Process) ShowIfFailed(t testing.TB) {
	if !t.Failed() || p.run == nil {
		return
	}
	fmt.Printf("=== %s: the end of what %s (%s) wrote:\n%s\n", t.Name(), p.Name, strings.Join(p.Cmd.Args, " "), p.Tail(shown))
	keep(t, filepath.Base(filepath.Dir(p.Log))+"-"+p.Name+".log", p.Output())
}
