package api

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// budget bounds the memory of bodies in flight, whatever clients do. Memory is
// charged as bytes arrive (body.go), so that announcing a body takes none.
//
// It is two halves: one for small bodies and the beginnings of all others, one
// for bodies that are large. So clients that post huge or never-ending bodies,
// or bombs, wait for each other and not in the way of everybody else. Within a
// half each subject has a fair share, and those whose bodies come slowly never
// hold more than half of it (half.go).
//
// Whoever holds memory of the large half has all that its body needs, and waits
// for nothing but the client, or for room to unpack it. For that, packed bodies
// leave room for one that is unpacked. So there is always somebody who can
// finish.
type budget struct {
	small, large *half
	wait         time.Duration
	moving       atomic.Int64 // bytes of the small half whose holders wait for the large one
}

const (
	// smallBody is the longest body that counts as small.
	smallBody = 1 << 20
	// beginning is how much of a body that is said to be large is kept among the
	// small ones until it is seen to come.
	beginning = 64 << 10
	// smallShare: of the memory for small bodies a subject may hold so many
	// times what it leaves free. One subject alone has four fifths, two have four
	// ninths each; whoever comes next finds some.
	smallShare = 4
)

var errNoMemory = errors.New("too much is in flight")

// newBudget makes a budget of so many bytes for bodies of at most longest.
func newBudget(size, longest int64, wait time.Duration) *budget {
	return &budget{
		small: newHalf(size/2, smallShare, 0),
		large: newHalf(size-size/2, 0, longest), // two of the longest bodies: no share of it would do for one
		wait:  wait,
	}
}

// held is the memory that is charged now.
func (b *budget) held() int64 { return b.small.held() + b.large.held() }

// hold is a piece of the budget. It belongs to one request.
type hold struct {
	budget  *budget
	half    *half
	subject string
	end     int64 // so long the body is said to be; -1 when nothing is said
	packed  bool  // it will be unpacked
	pace    *pace // of the body that is being read into it; nil when none is
	size    int64

	promised int64 // what its half keeps free for it beside
}

// receive waits for n bytes for a body that is being read.
func (b *budget) receive(ctx context.Context, subject string, n, end int64, packed bool, p *pace) (*hold, error) {
	h := &hold{budget: b, half: b.small, subject: subject, end: end, packed: packed, pace: p}
	return h, h.half.acquire(ctx, h, n, b.wait)
}

// unpack waits for n bytes for what comes out of a packed body, which holds
// memory itself meanwhile.
func (b *budget) unpack(ctx context.Context, subject string, n int64, sent *hold) (*hold, error) {
	h := &hold{budget: b, half: b.small, subject: subject, end: n}
	if n > smallBody {
		h.half = b.large
		leave, err := b.wants(sent)
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	return h, h.half.acquire(ctx, h, n, b.wait)
}

// grow waits until the hold is n bytes.
func (h *hold) grow(ctx context.Context, n int64) error {
	if h.leaves(n) {
		return h.move(ctx, n)
	}
	if n <= h.size {
		return nil
	}
	return h.half.acquire(ctx, h, n-h.size, h.budget.wait)
}

// tryGrow is grow for those who must not wait.
func (h *hold) tryGrow(n int64) bool {
	return n <= h.size || !h.leaves(n) && h.half.tryAcquire(h, n-h.size)
}

// leaves tells whether a hold of n bytes is none of a small body any more.
func (h *hold) leaves(n int64) bool {
	return h.half == h.budget.small && (n > smallBody || h.end > smallBody && n > beginning)
}

// move takes n bytes of the large half instead of what the hold has.
func (h *hold) move(ctx context.Context, n int64) error {
	leave, err := h.budget.wants(h)
	if err != nil {
		return err
	}
	defer leave()
	h.half.waits(h)
	larger := &hold{budget: h.budget, half: h.budget.large, subject: h.subject, end: h.end, packed: h.packed, pace: h.pace}
	if err := larger.half.acquire(ctx, larger, n, h.budget.wait); err != nil {
		return err
	}
	h.release()
	*h = *larger
	h.half.rename(larger, h)
	return nil
}

// wants lets a hold wait for memory of the large half. Who does so with memory
// of the small one keeps it from small bodies: together they may have half of
// it, and whoever comes then is told at once that there is no room.
func (b *budget) wants(h *hold) (leave func(), err error) {
	if h.half != b.small {
		return func() {}, nil
	}
	size := h.size
	if b.moving.Add(size) > b.small.size/2 {
		b.moving.Add(-size)
		return nil, errNoMemory
	}
	return func() { b.moving.Add(-size) }, nil
}

// shrink gives back all but n bytes.
func (h *hold) shrink(n int64) { h.half.giveBack(h, n) }

// arrived says that the body is read: nobody waits for its client any more.
func (h *hold) arrived() { h.half.arrived(h) }

// release gives everything back; more than once is harmless.
func (h *hold) release() { h.half.giveBack(h, 0) }
