package trial

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"sluice/cmd/internal/parts"
)

// part is a program that is started, broken and started again.
type part struct {
	name    string
	program string
	args    []string
	env     []string
	log     *os.File
	ended   func(*part, string) // called when it ends although nobody asked

	mu      sync.Mutex
	process *process // nil when it does not run
}

// process is one life of a part.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	asked  bool // somebody ended it
	killed bool // without warning
}

// start starts the part unless it runs.
func (p *part) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process != nil {
		return nil
	}
	cmd := exec.Command(p.program, p.args...)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.Env = p.env
	cmd.SysProcAttr = parts.DieWithUs()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	life := &process{cmd: cmd, exited: make(chan struct{})}
	p.process = life
	go p.wait(life)
	return nil
}

func (p *part) wait(life *process) {
	_ = life.cmd.Wait() // ProcessState says it better
	p.mu.Lock()
	if p.process == life {
		p.process = nil
	}
	asked := life.asked
	p.mu.Unlock()
	close(life.exited)
	if !asked {
		p.ended(p, life.cmd.ProcessState.String())
	}
}

// environ is the environment without settings meant for another program.
func environ() []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "SLUICE_") {
			env = append(env, entry)
		}
	}
	return env
}

// signal sends a signal, if the part runs and nobody is ending it.
func (p *part) signal(sig syscall.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process != nil && !p.process.asked && p.process.cmd.Process.Signal(sig) == nil
}

// end sends a signal that ends the part, and waits for it. It returns false
// when the part did not run, and the exit status: -1 when it did not end in
// time and was killed, 0 when somebody else killed it meanwhile.
func (p *part) end(sig syscall.Signal, limit time.Duration) (ran bool, status int) {
	p.mu.Lock()
	life := p.process
	if life == nil {
		p.mu.Unlock()
		return false, 0
	}
	life.asked, life.killed = true, life.killed || sig == syscall.SIGKILL
	_ = life.cmd.Process.Signal(sig)             // it may be ending already
	_ = life.cmd.Process.Signal(syscall.SIGCONT) // or stand still
	p.mu.Unlock()
	select {
	case <-life.exited:
		p.mu.Lock()
		defer p.mu.Unlock()
		if life.killed {
			return true, 0
		}
		return true, life.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
	}
	_ = life.cmd.Process.Kill()
	<-life.exited
	return true, -1
}

// kill ends the part without warning.
func (p *part) kill() bool {
	ran, _ := p.end(syscall.SIGKILL, time.Minute)
	return ran
}
