package programtest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Process is a program that was started. What it writes is in a file, so that a
// test that fails can show the end of it, and a run of hours costs no memory.
type Process struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{}
	err    error // of Wait; valid once exited is closed
}

// lastWords is how long the output of a process is waited for after its end. What
// it has started holds the other end of the same pipe: so the process counts as
// ended only when that has ended too, and its addresses and folders are free.
const lastWords = 10 * time.Second

// Launch starts a program whose output is appended to the file log. The program
// dies with this process. Without an environment of its own it gets Environ.
func Launch(cmd *exec.Cmd, log string) (*Process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if cmd.Env == nil {
		cmd.Env = Environ()
	}
	out := struct{ io.Writer }{file} // no *os.File, which the program would hold itself
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, out, lastWords
	dieWithUs(cmd)
	if err := cmd.Start(); err != nil {
		file.Close()
		return nil, err
	}
	p := &Process{cmd: cmd, log: log, exited: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		file.Close()
		close(p.exited)
	}()
	return p, nil
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

// PID is the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Args are the program and its arguments.
func (p *Process) Args() []string { return p.cmd.Args }

// String is the command line.
func (p *Process) String() string { return strings.Join(p.cmd.Args, " ") }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Err says how the process ended, if not by itself and well. It is valid once the
// process has ended.
func (p *Process) Err() error { return p.err }

// State is how the process ended, in words. It is valid once the process has ended.
func (p *Process) State() string { return p.cmd.ProcessState.String() }

// Status is the exit status, -1 after a signal. It is valid once the process has
// ended.
func (p *Process) Status() int { return p.cmd.ProcessState.ExitCode() }

// Signal sends a signal to the process itself.
func (p *Process) Signal(sig syscall.Signal) error { return p.cmd.Process.Signal(sig) }

// Kill ends the process without warning and waits until it is gone. One that is
// gone already is none to complain about.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// Stop asks the process to end, also when it stands still, and kills it when it has
// not after limit. It says whether the process ended in time.
func (p *Process) Stop(limit time.Duration) (inTime bool) { return p.End(syscall.SIGTERM, limit) }

// End is Stop with another signal.
func (p *Process) End(sig syscall.Signal, limit time.Duration) (inTime bool) {
	_ = p.Signal(sig) // it may have ended
	_ = p.Signal(syscall.SIGCONT)
	select {
	case <-p.exited:
		return true
	case <-time.After(limit):
		p.Kill()
		return false
	}
}

// Log is the file of what the process writes.
func (p *Process) Log() string { return p.log }

// Output is all that the process has written so far.
func (p *Process) Output() string {
	said, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(said)
}

// Tail is the end of what the process has written, without the ends of long lines.
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
