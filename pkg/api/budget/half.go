package budget

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// half is one of the two halves of the budget.
type half struct {
	size    int64
	share   int64 // a subject may hold so many times what it leaves free; 0: all there is
	reserve int64 // what packed bodies leave, so that one can be unpacked

	mu       sync.Mutex
	used     int64
	packed   int64               // of that, by bodies that will be unpacked
	promised int64               // what bodies that are on their way will need beside what they hold
	accounts map[string]*account // of subjects that hold some or wait
	waiting  int                 // requests, of all accounts
	reading  map[*Hold]struct{}  // those whose bodies are being read
	leaving  map[*Hold]struct{}  // those whose bodies were cut off: their memory is about to come back
	swept    time.Time           // when the slow were looked for last
}

// account is one subject's.
type account struct {
	held    int64     // with what its bodies are promised
	waiting []*waiter // oldest first
}

// waiter is a request that waits for memory.
type waiter struct {
	hold    *Hold
	more    int64
	began   time.Time
	granted chan struct{} // closed under the lock
}

func newHalf(size, share, reserve int64) *half {
	return &half{size: size, share: share, reserve: reserve, accounts: map[string]*account{}, reading: map[*Hold]struct{}{}, leaving: map[*Hold]struct{}{}}
}

func (h *half) held() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.used
}

// acquire adds bytes to a hold, and waits for them at most so long.
func (h *half) acquire(ctx context.Context, to *Hold, more int64, longest time.Duration) error {
	h.mu.Lock()
	now := time.Now()
	if h.used > h.size/2 {
		h.sweep(now)
	}
	kept := to.promised >= more
	h.promise(to, 0)
	if kept || h.waiting == 0 && h.fits(to, more) {
		h.charge(to, more)
		h.mu.Unlock()
		return nil
	}
	delete(h.reading, to) // its client does not keep us waiting, we keep it
	w := &waiter{to, more, time.Now(), make(chan struct{})}
	h.enqueue(w)
	h.grant()
	h.mu.Unlock()

	return h.await(ctx, w, longest)
}

// await waits for a grant. Meanwhile those are cut off whose bodies come too
// slowly to wait for.
func (h *half) await(ctx context.Context, w *waiter, longest time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	ticks := time.NewTicker(max(longest/80, time.Millisecond))
	defer ticks.Stop()
	for {
		select {
		case <-w.granted:
			return nil
		case now := <-ticks.C:
			h.mu.Lock()
			h.sweep(now)
			h.mu.Unlock()
		case <-ctx.Done():
			return h.giveUp(w)
		}
	}
}

// giveUp ends the waiting of a request, unless it was granted just now.
func (h *half) giveUp(w *waiter) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	default:
	}
	a := h.account(w.hold.subject)
	a.waiting = slices.DeleteFunc(a.waiting, func(other *waiter) bool { return other == w })
	h.waiting--
	h.settle(w.hold.subject)
	h.grant() // it may have stood before others
	return ErrNoMemory
}

// tryAcquire adds bytes to a hold if that needs no waiting.
func (h *half) tryAcquire(to *Hold, more int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting > 0 || !h.fits(to, more) {
		return false
	}
	h.charge(to, more)
	return true
}

// giveBack takes back all but n bytes of a hold.
func (h *half) giveBack(from *Hold, n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	less := from.size - n
	from.size = n
	h.promise(from, 0)
	h.used -= less
	if from.packed {
		h.packed -= less
	}
	h.account(from.subject).held -= less
	if n == 0 {
		delete(h.reading, from)
		delete(h.leaving, from)
	}
	h.settle(from.subject)
	h.grant()
}

func (h *half) arrived(from *Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.reading, from)
	delete(h.leaving, from) // if it was cut off at its very end, it is taken
	from.pace = nil
}

// waits says that the client of a hold does not keep us waiting any more, but we
// keep it.
func (h *half) waits(from *Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.reading, from)
	h.promise(from, 0)
}

// rename makes one hold stand for another of the same memory.
func (h *half) rename(was, is *Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.reading[was]; ok {
		delete(h.reading, was)
		h.reading[is] = struct{}{}
	}
}

// What follows is called under the lock.

func (h *half) account(subject string) *account {
	a, ok := h.accounts[subject]
	if !ok {
		a = &account{}
		h.accounts[subject] = a
	}
	return a
}

// settle forgets a subject that has nothing here.
func (h *half) settle(subject string) {
	if a := h.accounts[subject]; a.held == 0 && len(a.waiting) == 0 {
		delete(h.accounts, subject)
	}
}

// enqueue makes a request wait. Among small bodies the smallest request of a
// subject comes first: one that begins is not behind those that dawdle.
func (h *half) enqueue(w *waiter) {
	a := h.account(w.hold.subject)
	at := len(a.waiting)
	if h.share > 0 {
		at, _ = slices.BinarySearchFunc(a.waiting, w.more+1, func(other *waiter, more int64) int { return cmp.Compare(other.more, more) })
	}
	a.waiting = slices.Insert(a.waiting, at, w)
	h.waiting++
}

// free is what is neither held nor promised.
func (h *half) free() int64 { return h.size - h.used - h.promised }

// fits tells whether a hold may have more.
func (h *half) fits(to *Hold, more int64) bool {
	rest := h.rest(to, more)
	return h.free() >= rest && h.beyond(to, rest) <= 0 && !h.reserved(to, more)
}

// rest is what must be free for a hold to get more: among small bodies all that
// its body still needs, as far as that is known. It takes no more than it asks
// for, and is promised the others while its body comes as it should. Many that
// come at once would all hold a part of what they need otherwise, and wait for
// each other.
func (h *half) rest(to *Hold, more int64) int64 {
	if h.share == 0 || to.end < 0 {
		return more
	}
	end := to.end
	if end > SmallBody {
		end = Beginning // then it moves to the other half
	}
	return max(more, int64(Capacity(int(end)))-to.size)
}

// promise keeps so many bytes free for a hold, instead of what was kept for it.
func (h *half) promise(to *Hold, bytes int64) {
	if bytes == to.promised {
		return
	}
	bytes, to.promised = bytes-to.promised, bytes
	h.promised += bytes
	h.account(to.subject).held += bytes
}

// beyond is how much of a subject's memory would have to come back before it
// may have more, by its share. A subject that has nothing may have some.
func (h *half) beyond(to *Hold, more int64) int64 {
	a := h.accounts[to.subject]
	if h.share == 0 || a == nil || a.held == 0 {
		return 0
	}
	return (a.held + more - h.share*(h.free()-more) + h.share) / (h.share + 1)
}

func (h *half) charge(to *Hold, more int64) {
	rest := h.rest(to, more)
	h.used += more
	if to.packed {
		h.packed += more
	}
	h.account(to.subject).held += more
	to.size += more
	if to.pace != nil {
		h.reading[to] = struct{}{}
		h.promise(to, rest-more)
	}
}

// grant serves those who wait, the subject that holds least first. Where it
// waits for memory and not for its share, no other overtakes it: a large
// request would wait for ever.
func (h *half) grant() {
	for h.waiting > 0 {
		next := h.poorest()
		if next == nil || !h.fits(next.hold, next.more) {
			return
		}
		a := h.accounts[next.hold.subject]
		a.waiting = slices.DeleteFunc(a.waiting, func(w *waiter) bool { return w == next })
		h.waiting--
		h.charge(next.hold, next.more)
		if p := next.hold.pace; p != nil {
			p.start += time.Since(next.began) // that time was not its client's
		}
		close(next.granted)
	}
}

// poorest is the next request of the account that holds least, of those that
// wait and are not over their share.
func (h *half) poorest() (next *waiter) {
	least := h.size + 1
	for _, a := range h.accounts {
		if a.held >= least {
			continue
		}
		w := h.first(a)
		if w == nil {
			continue
		}
		if rest := h.rest(w.hold, w.more); h.free() >= rest && h.beyond(w.hold, rest) > 0 {
			continue
		}
		next, least = w, a.held
	}
	return next
}

// first is the request of an account that is served next: the first that can be.
// Packed bodies do not stand before what others of them need to be unpacked.
func (h *half) first(a *account) (first *waiter) {
	for _, w := range a.waiting {
		switch {
		case h.reserved(w.hold, w.more):
		case h.share == 0 || h.fits(w.hold, w.more):
			return w
		case first == nil:
			first = w
		}
	}
	return first
}

// reserved tells whether more would take what packed bodies leave.
func (h *half) reserved(to *Hold, more int64) bool {
	return to.packed && h.packed+more > h.size-h.reserve
}

// sweep looks for bodies that come slowly. Nothing is kept for them: announcing
// is not sending. They hold at most half of this half together, so that others
// need not wait for them, and make place for those who wait all the same.
func (h *half) sweep(now time.Time) {
	const every = 10 * time.Millisecond
	if now.Sub(h.swept) < every {
		return
	}
	h.swept = now
	var slow []*Hold
	var sum int64
	for r := range h.reading {
		if r.pace.slow(now) {
			h.promise(r, 0)
			slow = append(slow, r)
			sum += r.size
		}
	}
	if len(slow) == 0 {
		return
	}
	h.grant() // what was kept for them
	slices.SortFunc(slow, h.compare)
	slow = h.cut(slow, nil, sum-h.size/2, now)
	for subject, a := range h.accounts {
		if len(a.waiting) > 0 && len(slow) > 0 {
			slow = h.cutFor(slow, a, &subject, now)
		}
	}
}

// compare puts first those of the subject that holds most, and of one subject
// those who hold most.
func (h *half) compare(a, b *Hold) int {
	return cmp.Or(
		cmp.Compare(h.accounts[b.subject].held, h.accounts[a.subject].held),
		cmp.Compare(b.size, a.size),
		cmp.Compare(a.pace.start, b.pace.start),
	)
}

// cutFor makes room for a subject's requests that wait: of its own memory as far
// as they are over its share, else of any subject's. It returns those that are
// left.
func (h *half) cutFor(slow []*Hold, a *account, subject *string, now time.Time) []*Hold {
	var rest int64
	for _, w := range a.waiting {
		rest += h.rest(w.hold, w.more)
	}
	over := max(0, h.beyond(a.waiting[0].hold, rest))
	slow = h.cut(slow, subject, over-h.comesBack(subject), now)
	return h.cut(slow, nil, rest-over-h.free()-h.comesBack(nil), now)
}

// comesBack is what bodies that were cut off still hold, of one subject or of all.
func (h *half) comesBack(of *string) (bytes int64) {
	for r := range h.leaving {
		if of == nil || r.subject == *of {
			bytes += r.size
		}
	}
	return bytes
}

// cut cuts off as many as hold so many bytes, of one subject or of all, and
// returns those that are left.
func (h *half) cut(slow []*Hold, of *string, bytes int64, now time.Time) (left []*Hold) {
	for i, r := range slow {
		if bytes <= 0 {
			return append(left, slow[i:]...)
		}
		if of != nil && r.subject != *of {
			left = append(left, r)
			continue
		}
		r.pace.cutOff(now)
		delete(h.reading, r)
		h.leaving[r] = struct{}{} // until its reader notices
		bytes -= r.size
	}
	return left
}
