package budget

import (
	"context"
	"errors"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Budget bounds the memory of bodies in flight, whatever clients do. Memory is
// charged as bytes arrive, so that announcing a body takes none.
//
// It is two halves: one for small bodies and the beginnings of all others, one
// for bodies that are large. So clients that post huge or never-ending bodies,
// or bombs, wait for each other and hold up no others. Within a half each
// subject has a fair share, and those whose bodies come slowly never hold more
// than half of it (half.go).
//
// A hold of the large half has all the memory that its body needs, and waits
// for nothing but the client, or for room to unpack it. For that, packed bodies
// leave room for one that is unpacked. So one of them can always finish.
type Budget struct {
	small, large *half
	wait         time.Duration
	moving       atomic.Int64 // bytes of the small half whose holders wait for the large one
}

const (
	// SmallBody is the longest body that counts as small.
	SmallBody = 1 << 20
	// Beginning is how much of a body that is said to be large is kept among the
	// small ones until it is seen to come.
	Beginning = 64 << 10
	// smallShare: of the memory for small bodies a subject may hold so many times
	// what it leaves free. One subject alone has four fifths, two have four
	// ninths each; the next one finds some.
	smallShare = 4
)

// ErrNoMemory says that there was no memory for a body in the time that it may wait.
var ErrNoMemory = errors.New("too much is in flight")

// New makes a budget of so many bytes for bodies of at most longest.
func New(size, longest int64, wait time.Duration) *Budget {
	return &Budget{
		small: newHalf(size/2, smallShare, 0),
		large: newHalf(size-size/2, 0, longest), // two of the longest bodies: no share of it would do for one
		wait:  wait,
	}
}

// Held is the memory that is charged now.
func (b *Budget) Held() int64 { return b.small.held() + b.large.held() }

// Hold is a piece of the budget. It belongs to one request.
type Hold struct {
	budget  *Budget
	half    *half
	subject string
	end     int64 // so long the body is said to be; -1 when nothing is said
	packed  bool  // it will be unpacked
	pace    *Pace // of the body that is being read into it; nil when none is
	size    int64

	promised int64 // what its half keeps free for it beside
}

// Body is what is known of a body before it is read.
type Body struct {
	Subject string // whose it is
	End     int64  // so long it is said to be; -1 when nothing is said
	Packed  bool   // it will be unpacked
	Pace    *Pace  // reads it
}

// Receive waits for n bytes for a body that is being read.
func (b *Budget) Receive(ctx context.Context, body Body, n int64) (*Hold, error) {
	h := &Hold{budget: b, half: b.small, subject: body.Subject, end: body.End, packed: body.Packed, pace: body.Pace}
	return h, h.half.acquire(ctx, h, n, b.wait)
}

// Unpack waits for n bytes for what comes out of a packed body, which holds
// memory itself meanwhile.
func (b *Budget) Unpack(ctx context.Context, subject string, n int64, sent *Hold) (*Hold, error) {
	h := &Hold{budget: b, half: b.small, subject: subject, end: n}
	if n > SmallBody {
		h.half = b.large
		leave, err := b.wants(sent)
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	return h, h.half.acquire(ctx, h, n, b.wait)
}

// Told says whether it was said how long the body is.
func (h *Hold) Told() bool { return h.end >= 0 }

// Grow waits until the hold is n bytes.
func (h *Hold) Grow(ctx context.Context, n int64) error {
	if h.leaves(n) {
		return h.move(ctx, n)
	}
	if n <= h.size {
		return nil
	}
	return h.half.acquire(ctx, h, n-h.size, h.budget.wait)
}

// TryGrow is Grow for those who must not wait.
func (h *Hold) TryGrow(n int64) bool {
	return n <= h.size || !h.leaves(n) && h.half.tryAcquire(h, n-h.size)
}

// leaves tells whether a hold of n bytes is none of a small body any more.
func (h *Hold) leaves(n int64) bool {
	return h.half == h.budget.small && (n > SmallBody || h.end > SmallBody && n > Beginning)
}

// move takes n bytes of the large half instead of what the hold has.
func (h *Hold) move(ctx context.Context, n int64) error {
	leave, err := h.budget.wants(h)
	if err != nil {
		return err
	}
	defer leave()
	h.half.waits(h)
	larger := &Hold{budget: h.budget, half: h.budget.large, subject: h.subject, end: h.end, packed: h.packed, pace: h.pace}
	if err := larger.half.acquire(ctx, larger, n, h.budget.wait); err != nil {
		return err
	}
	h.Release()
	*h = *larger
	h.half.rename(larger, h)
	return nil
}

// wants lets a hold wait for memory of the large half. A hold that waits with
// memory of the small one keeps it from small bodies: together they may have
// half of it, and the next one is told at once that there is no room.
func (b *Budget) wants(h *Hold) (leave func(), err error) {
	if h.half != b.small {
		return func() {}, nil
	}
	size := h.size
	if b.moving.Add(size) > b.small.size/2 {
		b.moving.Add(-size)
		return nil, ErrNoMemory
	}
	return func() { b.moving.Add(-size) }, nil
}

// Shrink gives back all but n bytes.
func (h *Hold) Shrink(n int64) { h.half.giveBack(h, n) }

// Arrived says that the body is read: its client is not waited for any more.
func (h *Hold) Arrived() { h.half.arrived(h) }

// Release gives everything back; more than once is harmless.
func (h *Hold) Release() { h.half.giveBack(h, 0) }

// Buffers keeps byte slices for reuse, one pool for each power of two, so that
// a small body never pins the memory of a large one.
type Buffers struct {
	pools   [buffersMax - buffersMin + 1]sync.Pool
	headers sync.Pool // of slices that are in use: what the pools hold is behind a pointer
}

const (
	buffersMin = 12 // smallest capacity, 4 KiB, as a power of two
	buffersMax = 30
)

// Capacity is what Get gives for n bytes.
func Capacity(n int) int { return 1 << max(buffersMin, bits.Len(uint(max(n, 1)-1))) }

// Get returns an empty slice with room for n bytes.
func (p *Buffers) Get(n int) []byte {
	size := Capacity(n)
	class := bits.TrailingZeros(uint(size)) - buffersMin
	if b, ok := p.pools[class].Get().(*[]byte); ok {
		kept := (*b)[:0]
		*b = nil
		p.headers.Put(b)
		return kept
	}
	return make([]byte, 0, size)
}

// Put takes a slice of Get back. It must not be used any more.
func (p *Buffers) Put(b []byte) {
	if b == nil {
		return
	}
	header, ok := p.headers.Get().(*[]byte)
	if !ok {
		header = new([]byte)
	}
	*header = b
	p.pools[bits.TrailingZeros(uint(cap(b)))-buffersMin].Put(header)
}
