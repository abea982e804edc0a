package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const sigterm = syscall.SIGTERM

// breaker carries out a plan.
type breaker struct {
	*stage
	view *view

	// Held shared by what takes a NATS server away, and alone by a wipe: a
	// server may lose its data only while the others have all of it. More than
	// that no number of copies survives.
	wiping sync.RWMutex

	spared spared
}

// run breaks what the plan says, each fault at its time, and returns when the
// last one is over or, at the end of ctx, undone.
func (b *breaker) run(ctx context.Context, plan []fault) {
	began := time.Now()
	var faults sync.WaitGroup
	for _, f := range plan {
		if !sleep(ctx, time.Until(began.Add(f.at))) {
			break
		}
		faults.Go(func() { b.carryOut(ctx, f) })
	}
	faults.Wait()
}

func (b *breaker) carryOut(ctx context.Context, f fault) {
	if strings.HasPrefix(f.target, serviceNATS) && f.kind != wipe || f.kind == killLeader {
		if !b.wiping.TryRLock() {
			b.journal.note("%v: not now, the servers are needed", f)
			return
		}
		defer b.wiping.RUnlock()
	}
	if f.kind != freeze && f.kind != stepClock && b.spared.has(f.target) {
		b.journal.note("%v: not now, another fault has it", f)
		return
	}
	switch f.kind {
	case kill:
		b.kill(ctx, f)
	case pause:
		b.pause(ctx, f)
	case restart:
		b.restart(ctx, f)
	case cut, slow, stall:
		b.disturb(ctx, f)
	case killInInsert, killInEntry:
		b.ambush(ctx, f)
	case killLeader:
		b.killLeader(ctx, f)
	case wipe:
		b.wipe(ctx, f)
	case addLane:
		b.operate(ctx, "add a lane", func(c *Counts) { c.Lanes++ }, append([]string{"lanes", "add"}, b.streams()...)...)
	case spread:
		b.operate(ctx, f.String(), func(c *Counts) { c.Spreads++ }, "lanes", "spread", f.target)
	case fillDisk:
		b.fill(ctx, f)
	case outage:
		b.outage(ctx, f)
	case stepClock:
		b.step(ctx, f)
	case freeze:
		b.freeze(ctx, f)
	case addInRetry:
		b.retryAcrossLanes(ctx, f)
	case fillLane:
		b.fillLane(ctx, f)
	}
}

func (b *breaker) kill(ctx context.Context, f fault) {
	p := b.services[f.target]
	if !p.kill() {
		b.journal.note("%v: it is down already", f)
	} else {
		b.journal.note("%v", f)
		b.journal.count(func(c *Counts) { c.Kills++ })
	}
	sleep(ctx, f.hold)
	b.again(p)
}

// again starts a service that is to run.
func (b *breaker) again(p *service) {
	if err := p.start(); err != nil {
		b.journal.note("%v", err)
	}
}

func (b *breaker) pause(ctx context.Context, f fault) {
	p := b.services[f.target]
	if !p.signal(syscall.SIGSTOP) {
		b.journal.note("%v: it is down", f)
		return
	}
	b.journal.note("%v", f)
	b.journal.count(func(c *Counts) { c.Stops++ })
	sleep(ctx, f.hold)
	p.signal(syscall.SIGCONT) // another one, if it was killed meanwhile
}

func (b *breaker) restart(ctx context.Context, f fault) {
	p := b.services[f.target]
	ran, status := p.end(sigterm, 12*time.Second)
	switch {
	case !ran:
		b.journal.note("%v: it is down already", f)
	case status != 0:
		b.journal.count(func(c *Counts) { c.Restarts++; c.Unclean++ })
		b.journal.note("%v: it did not stop cleanly: exit status %d", f, status)
	default:
		b.journal.count(func(c *Counts) { c.Restarts++ })
		b.journal.note("%v", f)
	}
	sleep(ctx, f.hold)
	b.again(p)
}

func (b *breaker) disturb(ctx context.Context, f fault) {
	b.journal.note("%v", f)
	b.journal.count(func(c *Counts) { c.Cuts++ })
	links := b.links[f.target]
	for _, l := range links {
		switch f.kind {
		case cut:
			l.cut()
		case slow:
			l.slow(f.fine)
		case stall:
			l.stall()
		}
	}
	sleep(ctx, f.hold)
	for _, l := range links {
		l.slow(0)
		l.resume()
	}
}

// ambush kills a server while it is busy: soon after something that makes work
// has gone out to it.
func (b *breaker) ambush(ctx context.Context, f fault) {
	text, wait := "INSERT INTO flow.records", f.fine
	var links []*link
	for name, all := range b.links {
		switch {
		case f.kind == killInInsert && strings.HasSuffix(name, toEngine):
			links = append(links, all...)
		case f.kind == killInEntry && strings.HasPrefix(name, serviceAPI) && strings.HasSuffix(name, toNATS) && !b.spared.has(name):
			text, wait = entryOnItsWay, f.fine/20
			links = append(links, all...) // with several servers, to whichever it is connected
		}
	}
	sprung := make(chan struct{}, len(links))
	for _, l := range links {
		trap := l.await(text)
		go func() { <-trap; sprung <- struct{}{} }() // ends with the next entry or insert
	}
	if f.kind == killInEntry {
		gather(ctx, links)
	}
	select {
	case <-sprung:
		time.Sleep(wait)
		f.target += fmt.Sprintf(" %v after it began", wait)
	case <-time.After(3 * time.Second):
		f.target += ", which was idle"
	case <-ctx.Done():
		return
	}
	b.killAs(ctx, f)
}

// gather holds links for so long that the requests waiting behind them go out
// as one entry.
func gather(ctx context.Context, links []*link) {
	for _, l := range links {
		l.stall()
	}
	sleep(ctx, 1200*time.Millisecond)
	for _, l := range links {
		l.resume()
	}
}

// killAs kills the service that the target begins with.
func (b *breaker) killAs(ctx context.Context, f fault) {
	name, _, _ := strings.Cut(f.target, " ")
	p := b.services[strings.TrimSuffix(name, ",")]
	if p.kill() {
		b.journal.count(func(c *Counts) { c.Kills++ })
	}
	b.journal.note("%v", f)
	sleep(ctx, f.hold)
	b.again(p)
}

func (b *breaker) killLeader(ctx context.Context, f fault) {
	leader, err := b.view.leader(ctx)
	if err != nil || b.services[leader] == nil {
		b.journal.note("%v: %v", f, err)
		return
	}
	f.target = leader
	b.kill(ctx, f)
}

// wipe makes a server lose its data, as a broken disk does, and come back
// empty under its old name.
func (b *breaker) wipe(ctx context.Context, f fault) {
	b.wiping.Lock()
	defer b.wiping.Unlock()
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, name := range b.nats {
		b.again(b.services[name])
	}
	if err := b.view.whole(ready); err != nil {
		b.journal.note("%v: not done, the others do not have everything: %v", f, err)
		return
	}
	p := b.services[f.target]
	p.kill()
	if err := os.RemoveAll(b.data(f.target)); err != nil {
		b.journal.note("%v: %v", f, err)
	}
	b.journal.note("%v", f)
	b.journal.count(func(c *Counts) { c.Wipes++ })
	b.again(p)
	began := time.Now()
	filled, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
	defer cancel()
	if err := b.view.whole(filled); err != nil {
		b.journal.note("%s has not caught up: %v", f.target, err)
		return
	}
	b.journal.note("%s has caught up after %v", f.target, time.Since(began).Round(time.Millisecond))
}

// operate does something to the lanes as an operator does, who tries again when
// NATS is away.
func (b *breaker) operate(ctx context.Context, doing string, done func(*Counts), args ...string) {
	args = append(args, "--nats", natsURL(b.natsAddrs))
	for {
		cmd := exec.CommandContext(ctx, filepath.Join(b.cfg.Bin, "sluice"), args...)
		cmd.Dir, cmd.Env = b.dir, b.withClock(operator)
		out, err := cmd.CombinedOutput()
		if err == nil {
			b.journal.count(done)
			b.journal.note("%s: %s", doing, strings.TrimSpace(string(out)))
			return
		}
		b.journal.note("%s: %v: %s", doing, err, strings.TrimSpace(string(out)))
		if !sleep(ctx, time.Second) {
			return
		}
	}
}

func (b *breaker) fill(ctx context.Context, f fault) {
	d := b.disks[f.target]
	if err := d.fill(); err != nil {
		b.journal.note("%v: %v", f, err)
		return
	}
	b.journal.note("%v", f)
	b.journal.count(func(c *Counts) { c.Fills++ })
	sleep(ctx, f.hold)
	if err := d.empty(); err != nil {
		b.journal.note("%v", err)
	}
}

// outage stops the engine gracefully and starts it again after the hold.
func (b *breaker) outage(ctx context.Context, f fault) {
	p := b.services[f.target]
	p.end(sigterm, 15*time.Second)
	b.journal.note("%v", f)
	sleep(ctx, f.hold)
	b.again(p)
	b.journal.note("the engine is started again")
}
