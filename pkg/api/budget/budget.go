// Package budget bounds the memory of request bodies in flight, shared fairly between
// subjects (budget.go), and their arrival time (pace.go).
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

// Budget bounds the memory of bodies in flight by two pools: bodies beyond SmallBody wait for
// each other, never for small ones. In the small pool a subject holds at most four times the
// free memory: one subject alone gets four fifths, and the next finds memory immediately.
//
// A request that waits for the large pool may hold small memory, never the reverse, and
// acquires all that it needs of the large pool at once. So requests cannot deadlock.
type Budget struct {
	small, large *pool
	wait         time.Duration
}

// SmallBody is the size limit of small bodies.
const SmallBody = 1 << 20

// ErrNoMemory is the error of a request that timed out waiting for memory.
var ErrNoMemory = errors.New("too much is in flight")

// New makes a budget of size bytes, at least four times the longest body. A request waits
// for memory at most wait.
func New(size int64, wait time.Duration) *Budget {
	return &Budget{small: newPool(size/2, 4, wait/80), large: newPool(size-size/2, 0, wait/80), wait: wait}
}

// Held is the memory in use.
func (b *Budget) Held() int64 { return b.small.held() + b.large.held() }

type pool struct {
	size  int64
	share int64         // a subject may hold this multiple of the free memory; 0: everything
	every time.Duration // interval of sweeps for slow bodies while the pool is crowded

	mu       sync.Mutex
	used     int64
	subjects map[string]*subject
	waiting  []*waiter // in the order of their arrival
	reading  map[*Hold]struct{}
	sweeping bool // a sweep is scheduled
}

// subject is a subject that holds memory of a pool or waits for it.
type subject struct {
	name     string
	held     int64
	requests int // holding or waiting
}

// Hold is the memory of one request.
type Hold struct {
	pool    *pool
	subject *subject
	size    int64
	pace    *Pace // of the body being read, or nil
	cut     bool  // the body was aborted; its memory will be released
}

type waiter struct {
	hold    *Hold
	granted chan struct{} // closed when granted
}

func newPool(size, share int64, every time.Duration) *pool {
	return &pool{size: size, share: share, every: max(every, time.Millisecond), subjects: map[string]*subject{}, reading: map[*Hold]struct{}{}}
}

func (p *pool) held() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// Acquire waits for n bytes. pace, unless nil, is that of a body being read, which may be
// aborted for others if it is slow.
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
	p.grant() // others may have waited after it
	return nil, ErrNoMemory
}

// Unwatch ends the watch over the body: it was read, or waits for more memory.
func (h *Hold) Unwatch() {
	h.pool.mu.Lock()
	defer h.pool.mu.Unlock()
	delete(h.pool.reading, h)
}

// Shrink releases all but n bytes.
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

// Release releases everything; repeated calls are harmless.
func (h *Hold) Release() { h.Shrink(0) }

// The following methods need the lock.

// leave removes a subject with its last request.
func (p *pool) leave(s *subject) {
	if s.requests--; s.requests == 0 {
		delete(p.subjects, s.name)
	}
}

func (p *pool) free() int64 { return p.size - p.used }

// hasShare reports whether the share of its subject allows a request. A subject that holds
// nothing always may.
func (p *pool) hasShare(h *Hold) bool {
	return p.share == 0 || h.subject.held == 0 || h.subject.held+h.size <= p.share*(p.free()-h.size)
}

// grant serves waiting requests, the subject with the least memory first. No request
// overtakes one that waits for memory, or a large one would starve. Requests that wait for
// their subject's share are skipped.
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

// scheduleSweep schedules a sweep while requests wait, or half of the memory is used.
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

// sweep aborts slow bodies: as many as free the memory that others wait for, and all that
// together hold more than half of the pool; the subject with the most memory first. Requests
// that wait for their own subject's share abort no others.
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

// Buffers reuses byte slices, one pool per power of two, so that a small body never pins a
// large buffer.
type Buffers [31]sync.Pool

// Capacity is the size of the buffer for n bytes: a power of two, at least 4 KiB.
func Capacity(n int) int { return 1 << max(12, bits.Len(uint(max(n, 1)-1))) }

// Get returns an empty slice with capacity for n bytes.
func (p *Buffers) Get(n int) *[]byte {
	size := Capacity(n)
	if b, ok := p[bits.TrailingZeros(uint(size))].Get().(*[]byte); ok {
		*b = (*b)[:0]
		return b
	}
	b := make([]byte, 0, size)
	return &b
}

// Put returns a slice of Get, which must not be used afterwards.
func (p *Buffers) Put(b *[]byte) { p[bits.TrailingZeros(uint(cap(*b)))].Put(b) }
