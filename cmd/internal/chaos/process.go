package main

import (
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"sluice/pkg/programtest"
)

// service is a program that is started, broken and started again.
type service struct {
	name    string
	program string
	args    []string
	env     []string
	log     string
	ended   func(*service, string) // called when it ends unasked

	mu   sync.Mutex
	life *life // nil when it does not run
}

// life is one process of a service.
type life struct {
	*programtest.Process
	asked  bool // it was told to end
	killed bool // without warning
}

// start starts the service unless it runs.
func (p *service) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life != nil {
		return nil
	}
	cmd := exec.Command(p.program, p.args...)
	cmd.Env = p.env
	process, err := programtest.Launch(cmd, p.log)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.life = &life{Process: process}
	go p.wait(p.life)
	return nil
}

func (p *service) wait(one *life) {
	<-one.Exited()
	p.mu.Lock()
	if p.life == one {
		p.life = nil
	}
	asked := one.asked
	p.mu.Unlock()
	if !asked {
		p.ended(p, one.State())
	}
}

// signal sends a signal, if the service runs and is not being ended.
func (p *service) signal(sig syscall.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life != nil && !p.life.asked && p.life.Signal(sig) == nil
}

// end sends a signal that ends the service, and waits for it. It returns false
// when the service did not run, and the exit status: -1 when it did not end in
// time and was killed, 0 when another goroutine killed it meanwhile.
func (p *service) end(sig syscall.Signal, limit time.Duration) (ran bool, status int) {
	p.mu.Lock()
	one := p.life
	if one == nil {
		p.mu.Unlock()
		return false, 0
	}
	one.asked, one.killed = true, one.killed || sig == syscall.SIGKILL
	p.mu.Unlock()
	if !one.End(sig, limit) {
		return true, -1
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if one.killed {
		return true, 0
	}
	return true, one.Status()
}

// kill ends the service without warning.
func (p *service) kill() bool {
	ran, _ := p.end(syscall.SIGKILL, time.Minute)
	return ran
}
