package api

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// budget bounds the memory of bodies in flight, whatever clients do. It is two
// halves: one for small bodies whose length is known from the start, one for
// all others. So clients that post huge or never-ending bodies, or bombs, wait
// for each other and not in the way of everybody else. Those that hold memory
// of the second half and dawdle are cut off when others wait for it.
type budget struct {
	small, large *semaphore.Weighted
	wait         time.Duration
	held         atomic.Int64 // for metrics

	mu      sync.Mutex
	watched map[*pace]struct{} // bodies of the large half that are being read
}

// smallBody is the longest body that counts as small.
const smallBody = 1 << 20

var errNoMemory = errors.New("too much is in flight")

func newBudget(size int64, wait time.Duration) *budget {
	return &budget{
		small:   semaphore.NewWeighted(size / 2),
		large:   semaphore.NewWeighted(size - size/2),
		wait:    wait,
		watched: make(map[*pace]struct{}),
	}
}

// hold is a piece of the budget. It belongs to one request.
type hold struct {
	budget *budget
	half   *semaphore.Weighted
	size   int64
}

// take waits for n bytes. known says that n will do, or that nothing but our
// own work stands between now and knowing how much will.
func (b *budget) take(ctx context.Context, n int64, known bool) (*hold, error) {
	h := &hold{budget: b, half: b.large}
	if known && n <= smallBody {
		h.half = b.small
	}
	return h, h.grow(ctx, n)
}

// grow waits until the hold is n bytes. Several holds that grow may be in each
// other's way: then one gives up after the wait, lets go, and the others go on.
func (h *hold) grow(ctx context.Context, n int64) error {
	if h.half == h.budget.small && n > smallBody {
		return h.move(ctx, n)
	}
	more := n - h.size
	if more <= 0 {
		return nil
	}
	if !h.half.TryAcquire(more) && h.queue(ctx, more) != nil {
		return errNoMemory
	}
	h.size = n
	h.budget.held.Add(more)
	return nil
}

// move takes n bytes of the large half instead of what the hold has.
func (h *hold) move(ctx context.Context, n int64) error {
	larger := &hold{budget: h.budget, half: h.budget.large}
	if err := larger.grow(ctx, n); err != nil {
		return err
	}
	h.release()
	*h = *larger
	return nil
}

// queue waits for n bytes, as long as it may.
func (h *hold) queue(ctx context.Context, n int64) error {
	ctx, cancel := context.WithTimeout(ctx, h.budget.wait)
	defer cancel()
	if h.half == h.budget.large {
		ticks := time.NewTicker(h.budget.patience())
		defer ticks.Stop()
		go h.budget.cutWhile(ctx, ticks.C)
	}
	return h.half.Acquire(ctx, n)
}

// shrink gives back all but n bytes.
func (h *hold) shrink(n int64) {
	less := h.size - n
	h.half.Release(less)
	h.budget.held.Add(-less)
	h.size = n
}

// release gives everything back; more than once is harmless.
func (h *hold) release() { h.shrink(0) }

// patience is how long somebody waits before the slow are cut off.
func (b *budget) patience() time.Duration { return max(b.wait/4, time.Millisecond) }

func (b *budget) watch(p *pace) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watched[p] = struct{}{}
}

func (b *budget) unwatch(p *pace) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.watched, p)
}

// pause spares a body that is watched while it waits itself, until the function
// it returns is called.
func (b *budget) pause(p *pace) (resume func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.watched[p]; !ok {
		return func() {}
	}
	delete(b.watched, p)
	since := time.Now()
	return func() {
		p.start = p.start.Add(time.Since(since))
		b.watch(p)
	}
}

// cutWhile cuts off slow bodies at every tick until ctx ends: somebody waits.
func (b *budget) cutWhile(ctx context.Context, ticks <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticks:
			b.mu.Lock()
			for p := range b.watched {
				p.cutIfSlow(now, b.patience())
			}
			b.mu.Unlock()
		}
	}
}
