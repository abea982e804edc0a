package api

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// budget bounds the memory of bodies in flight, whatever clients do. It is two
// halves: one for small bodies whose length is known from the start, one for
// all others. So clients that post huge or never-ending bodies, or bombs, wait
// for each other and not in the way of everybody else.
type budget struct {
	small, large *semaphore.Weighted
	wait         time.Duration
	held         atomic.Int64 // for metrics
}

// smallBody is the longest body that counts as small.
const smallBody = 1 << 20

var errNoMemory = errors.New("too much is in flight")

func newBudget(size int64, wait time.Duration) *budget {
	return &budget{
		small: semaphore.NewWeighted(size / 2),
		large: semaphore.NewWeighted(size - size/2),
		wait:  wait,
	}
}

// hold is a piece of the budget. It belongs to one request.
type hold struct {
	budget *budget
	half   *semaphore.Weighted
	size   int64
}

// take waits for n bytes. known says that n will do.
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
	more := n - h.size
	if more <= 0 {
		return nil
	}
	if !h.half.TryAcquire(more) {
		ctx, cancel := context.WithTimeout(ctx, h.budget.wait)
		defer cancel()
		if err := h.half.Acquire(ctx, more); err != nil {
			return errNoMemory
		}
	}
	h.size = n
	h.budget.held.Add(more)
	return nil
}

// release gives everything back; more than once is harmless.
func (h *hold) release() {
	h.half.Release(h.size)
	h.budget.held.Add(-h.size)
	h.size = 0
}
