package stream

import (
	"context"
	"slices"
	"sync"
)

// What gathers into one commit. The server stages an atomic batch in files of
// its own before it commits it, which costs about as much as a dozen messages
// synced one by one; from there on a message more costs a tenth of its own
// sync, until its bytes cost more than that.
const (
	groupAtLeast  = 12       // messages from which they go as one batch, and not each by itself
	groupMessages = 256      // messages of one commit
	groupBytes    = 1 << 20  // bytes of one commit
	groupBelow    = 32 << 10 // bytes of a body below which gathering pays
	groupInFlight = 1        // commits of one lane at a time
)

// group gathers the small messages of a lane. Whoever comes while fewer than
// groupInFlight commits are in flight leads one at once; the others wait. When
// a commit ends, the first who waits leads the next, with all who wait by then.
// So nobody waits for company, and the slower the disk, the larger the commits.
type group struct {
	wire *wire

	mu       sync.Mutex
	waiting  []*waiter // in order of arrival, none of them in a commit
	inFlight int       // leaders at work
}

// waiter is a message in a group.
type waiter struct {
	message message
	told    chan result // gets exactly one
}

// result is what a waiter is told: its commit's outcome, or to lead one, or
// that it goes alone.
type result struct {
	lead  bool
	alone bool
	ack   ack
	err   error
}

// commit makes m durable together with what else waits. The answer is that of
// the whole commit. When ctx ends while m waits, nothing of it was sent.
func (g *group) commit(ctx context.Context, lane *Lane, m message) (ack, error) {
	w := &waiter{message: m, told: make(chan result, 1)}
	g.mu.Lock()
	lead := g.inFlight < groupInFlight
	if lead {
		g.inFlight++
	} else {
		g.waiting = append(g.waiting, w)
	}
	g.mu.Unlock()
	if lead {
		return g.lead(lane, w)
	}
	var r result
	select {
	case r = <-w.told:
	case <-ctx.Done():
		if g.leave(w) {
			return ack{}, errNotSent
		}
		r = <-w.told // it is in a commit, which uses its body and ends soon
	}
	switch {
	case r.lead:
		return g.lead(lane, w)
	case r.alone:
		return g.wire.commit(ctx, lane, []message{m})
	}
	return r.ack, r.err
}

// lead commits a leader's message with what waits by now, and hands on. The
// commit is not only the leader's, so the leader's ctx does not end it.
func (g *group) lead(lane *Lane, leader *waiter) (ack, error) {
	others := g.take(len(leader.message.body))
	if 1+len(others) < groupAtLeast {
		for _, w := range others {
			w.told <- result{alone: true}
		}
		others = nil
	}
	list := make([]message, 0, 1+len(others))
	list = append(list, leader.message)
	for _, w := range others {
		list = append(list, w.message)
	}
	a, err := g.wire.commit(context.Background(), lane, list)
	g.handOn()
	for _, w := range others {
		w.told <- result{ack: a, err: err}
	}
	return a, err
}

// take takes what fits into a commit that has one message of size bytes.
func (g *group) take(size int) []*waiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for n < len(g.waiting) && n < groupMessages-1 && size < groupBytes {
		size += len(g.waiting[n].message.body)
		n++
	}
	taken := slices.Clone(g.waiting[:n])
	g.waiting = slices.Delete(g.waiting, 0, n)
	return taken
}

// handOn makes the first who waits a leader, or ends this line of commits.
func (g *group) handOn() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.inFlight--
		return
	}
	first := g.waiting[0]
	g.waiting = slices.Delete(g.waiting, 0, 1)
	first.told <- result{lead: true}
}

// leave takes w out, unless it is in a commit or about to lead one.
func (g *group) leave(w *waiter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.waiting, w)
	if i < 0 {
		return false
	}
	g.waiting = slices.Delete(g.waiting, i, i+1)
	return true
}
