// Package budget bounds what the bodies of requests in flight take: memory, fairly
// shared between subjects (budget.go), and time (pace.go).
package budget

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"time"
)

// Budget bounds the memory of bodies in flight. It is two pools: bodies of more than
// SmallBody wait for each other and never for small ones. In the pool of small bodies
// a subject holds at most four times what it leaves free: one subject alone has four
// fifths, and the next one finds memory at once.
//
// A request that waits for the large pool may hold memory of the small one, never the
// reverse, and what it takes of the large pool is all that it needs. So requests never
// wait for each other in a circle.
type Budget struct {
	small, large *pool
	wait         time.Duration
}

// SmallBody is the longest body that counts as small.
const SmallBody = 1 << 20

// ErrNoMemory is the error of a request that has waited for memory in vain.
var ErrNoMemory = errors.New("too much is in flight")

// New makes a budget of so many bytes, at least four times the longest body. A request
// waits for memory at most so long.
func New(size int64, wait time.Duration) *Budget {
	return &Budget{small: newPool(size/2, 4, wait/80), large: newPool(size-size/2, 0, wait/80), wait: wait}
}

// Held is the memory in use.
func (b *Budget) Held() int64 { return b.small.held() + b.large.held() }

// pool is one of the two pools.
type pool struct {
	size  int64
	share int64         // a subject may hold so many times what it leaves free; 0: everything
	every time.Duration // how often slow bodies are looked for while the pool is crowded

	mu       sync.Mutex
	used     int64
	subjects map[string]*subject
	waiting  []*waiter // in the order of their arrival
	reading  map[*Hold]struct{}
	sweeping bool // a sweep is scheduled
}

// subject is one that holds memory of a pool, or waits for some.
type subject struct {
	name     string
	held     int64
	requests int // that hold memory or wait
}

// Hold is the memory of one request.
type Hold struct {
	pool    *pool
	subject *subject
	size    int64
	pace    *Pace // reads the body; nil when none is read
	cut     bool  // the body was cut off; the memory is about to come back
}

type waiter struct {
	hold    *Hold
	granted chan struct{} // closed once it waits no more
}

func newPool(size, share int64, every time.Duration) *pool {
	return &pool{size: size, share: share, every: max(every, time.Millisecond), subjects: map[string]*subject{}, reading: map[*Hold]struct{}{}}
}

func (p *pool) held() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// Acquire waits for n bytes. With a pace they are for a body that is being read: when
// it is slow, it is cut off for others.
func (b *Budget) Acquire(ctx context.Context, name string, n int64, pace *Pace) (*Hold, error) {
	p := b.small
	if n > SmallBody {
		p = b.large
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.subjects[name]
	if s == nil {
		s = &subject{name: name}
		p.subjects[name] = s
	}
	s.requests++
	h := &Hold{pool: p, subject: s, size: n, pace: pace}
	if len(p.waiting) == 0 && p.hasShare(h) && n <= p.free() {
		p.charge(h)
		p.scheduleSweep()
		return h, nil
	}
	w := &waiter{h, make(chan struct{})}
	p.waiting = append(p.waiting, w)
	p.grant()
	p.scheduleSweep()
	p.mu.Unlock()
	timeout := time.NewTimer(b.wait)
	defer timeout.Stop()
	select {
	case <-w.granted:
	case <-timeout.C:
	case <-ctx.Done():
	}
	p.mu.Lock()
	at := slices.Index(p.waiting, w)
	if at < 0 { // granted
		return h, nil
	}
	p.waiting = slices.Delete(p.waiting, at, at+1)
	p.leave(s)
	p.grant() // others may have waited behind it
	return nil, ErrNoMemory
}

// Unwatch says that the client is not waited for any more: its body was read, or waits
// for more memory.
func (h *Hold) Unwatch() {
	h.pool.mu.Lock()
	defer h.pool.mu.Unlock()
	delete(h.pool.reading, h)
}

// Shrink gives back all but n bytes.
func (h *Hold) Shrink(n int64) {
	p := h.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.size <= n {
		return
	}
	p.used -= h.size - n
	h.subject.held -= h.size - n
	h.size = n
	if n == 0 {
		delete(p.reading, h)
		p.leave(h.subject)
	}
	p.grant()
}

// Release gives everything back; more than once is harmless.
func (h *Hold) Release() { h.Shrink(0) }

// What follows is called under the lock.

// leave removes a subject with its last request.
func (p *pool) leave(s *subject) {
	if s.requests--; s.requests == 0 {
		delete(p.subjects, s.name)
	}
}

func (p *pool) free() int64 { return p.size - p.used }

// hasShare tells whether the share of its subject leaves room for a request. A subject
// that holds nothing may have some.
func (p *pool) hasShare(h *Hold) bool {
	return p.share == 0 || h.subject.held == 0 || h.subject.held+h.size <= p.share*(p.free()-h.size)
}

// grant serves waiting requests, the subject that holds least first. No request
// overtakes one that waits for memory: a large one would wait for ever. One that waits
// for the share of its subject is passed over.
func (p *pool) grant() {
	for {
		next := -1
		for i, w := range p.waiting {
			if p.hasShare(w.hold) && (next < 0 || w.hold.subject.held < p.waiting[next].hold.subject.held) {
				next = i
			}
		}
		if next < 0 || p.waiting[next].hold.size > p.free() {
			return
		}
		w := p.waiting[next]
		p.waiting = slices.Delete(p.waiting, next, next+1)
		p.charge(w.hold)
		close(w.granted)
	}
}

func (p *pool) charge(h *Hold) {
	p.used += h.size
	h.subject.held += h.size
	if h.pace != nil {
		p.reading[h] = struct{}{}
	}
}

// scheduleSweep looks for slow bodies as long as requests wait, or half of the memory
// is used.
func (p *pool) scheduleSweep() {
	if p.sweeping || len(p.waiting) == 0 && p.used <= p.size/2 {
		return
	}
	p.sweeping = true
	time.AfterFunc(p.every, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.sweeping = false
		p.sweep()
		p.scheduleSweep()
	})
}

// sweep cuts off slow bodies: as many as hold what other requests wait for, and all
// that hold more than half of the pool together; the subject that holds most first. A
// request that waits for the share of its subject costs no other subject anything.
func (p *pool) sweep() {
	wanted, leaving := -p.free(), int64(0)
	shares := map[*subject]int64{}
	for _, w := range p.waiting {
		if p.hasShare(w.hold) {
			wanted += w.hold.size
		} else {
			shares[w.hold.subject] += w.hold.size
		}
	}
	var slow []*Hold
	var sum int64
	for h := range maps.Keys(p.reading) {
		switch {
		case h.cut:
			leaving += h.size
			shares[h.subject] -= h.size
		case h.pace.slow():
			slow, sum = append(slow, h), sum+h.size
		}
	}
	wanted = max(wanted-leaving, sum-p.size/2)
	slices.SortFunc(slow, func(a, b *Hold) int {
		return cmp.Or(cmp.Compare(b.subject.held, a.subject.held), cmp.Compare(b.size, a.size))
	})
	for _, h := range slow {
		if wanted <= 0 && shares[h.subject] <= 0 {
			continue
		}
		wanted -= h.size
		shares[h.subject] -= h.size
		h.cut = true
		h.pace.cutOff()
	}
}

// Buffers keeps byte slices for reuse, one pool for each power of two, so that a small
// body never pins the memory of a large one.
type Buffers [31]sync.Pool

// Capacity is the size of the buffer for n bytes: a power of two, at least 4 KiB.
func Capacity(n int) int { return 1 << max(12, bits.Len(uint(max(n, 1)-1))) }

// Get returns an empty slice with room for n bytes.
func (p *Buffers) Get(n int) *[]byte {
	size := Capacity(n)
	if b, ok := p[bits.TrailingZeros(uint(size))].Get().(*[]byte); ok {
		*b = (*b)[:0]
		return b
	}
	b := make([]byte, 0, size)
	return &b
}

// Put takes a slice of Get back. It must not be used any more.
func (p *Buffers) Put(b *[]byte) { p[bits.TrailingZeros(uint(cap(*b)))].Put(b) }
