package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"
)

// spared are services and links that a fault has for itself: to others they are out
// of reach until it is over.
type spared struct {
	mu    sync.Mutex
	names map[string]bool
}

// take reports false when another fault has one of them.
func (s *spared) take(names ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if s.names[name] {
			return false
		}
	}
	if s.names == nil {
		s.names = map[string]bool{}
	}
	for _, name := range names {
		s.names[name] = true
	}
	return true
}

func (s *spared) give(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		delete(s.names, name)
	}
}

func (s *spared) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[name]
}

// freeze stops an api in the middle of a publish for longer than repeats are
// recognised: the entry is on its way to NATS, and arrives when everything that
// it was to be compared with may be forgotten. Then the api goes on, with the
// answer of NATS in its socket. The entry is void, and no client is told OK.
func (b *breaker) freeze(ctx context.Context, f fault) {
	road := f.target + toNATS
	if !b.spared.take(f.target, road) {
		b.journal.note("%v: not now, it is frozen", f)
		return
	}
	defer b.spared.give(f.target, road)
	b.wiping.Lock() // a server that ends takes what is on its way to it along
	defer b.wiping.Unlock()
	links := b.links[road]
	resume := func() {
		for _, l := range links {
			l.letPass()
			l.resume()
		}
	}
	defer resume()
	sent := make(chan struct{}, len(links))
	for _, l := range links {
		trap := l.stallAt(entryOnItsWay)
		go func() {
			select {
			case <-trap:
				sent <- struct{}{}
			case <-ctx.Done():
			}
		}()
	}
	select {
	case <-sent:
		sleep(ctx, 200*time.Millisecond) // the rest of it
	case <-time.After(5 * time.Second):
		b.journal.note("%v: it has nothing to send", f)
		return
	case <-ctx.Done():
		return
	}
	p := b.services[f.target]
	if !p.signal(syscall.SIGSTOP) {
		b.journal.note("%v: it is down", f)
		return
	}
	defer p.signal(syscall.SIGCONT)
	b.journal.note("%v, with an entry on its way", f)
	b.journal.count(func(c *Counts) { c.Freezes++ })
	sleep(ctx, f.hold)
	resume()
	sleep(ctx, 2*time.Second) // NATS takes it, and says so
}

// entryOnItsWay is a header of every entry.
const entryOnItsWay = "Sluice-Entry"

// retryAcrossLanes adds a lane while requests are on their way for longer than
// their clients wait: they are sent again before and after.
func (b *breaker) retryAcrossLanes(ctx context.Context, f fault) {
	var links []*link
	for name, all := range b.links {
		if strings.HasPrefix(name, serviceAPI) && strings.HasSuffix(name, toNATS) && b.spared.take(name) {
			defer b.spared.give(name)
			links = append(links, all...)
		}
	}
	b.journal.note("%v", f)
	for _, l := range links {
		l.stall()
	}
	defer func() {
		for _, l := range links {
			l.resume()
		}
	}()
	sleep(ctx, f.hold)
	b.operate(ctx, "add a lane", func(c *Counts) { c.Lanes++ }, append([]string{"lanes", "add"}, b.streams()...)...)
	sleep(ctx, f.hold/4)
}

// fillLane leaves a lane no room for a while: of requests that are cut over
// several lanes, the others take their pieces.
func (b *breaker) fillLane(ctx context.Context, f fault) {
	// A server that is killed while it writes a stream's configuration down does
	// not know the stream any more: no fault of a server comes between.
	b.wiping.Lock()
	undo, err := b.view.leaveNoRoom(ctx, f.target)
	b.wiping.Unlock()
	if err != nil {
		b.journal.note("%v: %v", f, err)
		return
	}
	b.journal.note("%v", f)
	b.journal.count(func(c *Counts) { c.FullLanes++ })
	sleep(ctx, f.hold)
	for {
		b.wiping.Lock()
		err := undo(context.WithoutCancel(ctx))
		b.wiping.Unlock()
		if err == nil {
			return
		}
		b.journal.note("make room in %s again: %v", f.target, err)
		time.Sleep(time.Second)
	}
}

// leaveNoRoom bounds a lane by what it holds. undo gives it its room back.
func (v *view) leaveNoRoom(ctx context.Context, lane string) (undo func(context.Context) error, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	stream, err := v.js.Stream(ctx, lane)
	if err != nil {
		return nil, err
	}
	before := stream.CachedInfo().Config
	full := before
	full.MaxBytes = int64(max(stream.CachedInfo().State.Bytes, 1))
	if _, err := v.js.UpdateStream(ctx, full); err != nil {
		return nil, fmt.Errorf("leave no room in %s: %w", lane, err)
	}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := v.js.UpdateStream(ctx, before)
		return err
	}, nil
}
