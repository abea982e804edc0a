package stream

import (
	"context"
	"slices"
	"sync"

	"github.com/nats-io/nuid"
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
)

// group gathers the small messages of a lane, one commit at a time: two would
// share the same writer in the server, and each have half of the messages.
// Whoever comes while none is in flight leads one at once; the others wait. When
// a commit ends, the first who waits leads the next, with all who wait by then.
// So nobody waits for company, and the slower the disk, the larger the commits.
type group struct {
	wire *wire

	mu      sync.Mutex
	waiting []*waiter // in order of arrival, none of them in a commit
	led     bool      // a leader is at work
	last    int       // messages of the last commit
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
	lead := !g.led
	g.led = true
	if !lead {
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
	ctx, done := g.wire.link.attempt(context.Background(), attemptLimit)
	defer done()
	var a ack
	var err error
	var others []*waiter
	if g.crowded() {
		a, others, err = g.stage(ctx, lane, leader)
	} else {
		a, others, err = g.gather(ctx, lane, leader)
	}
	g.handOn(1 + len(others))
	for _, w := range others {
		w.told <- result{ack: a, err: err}
	}
	return a, err
}

// gather commits the leader's message with what waits already, as one batch if
// that is worth it.
func (g *group) gather(ctx context.Context, lane *Lane, leader *waiter) (ack, []*waiter, error) {
	others := g.take(len(leader.message.body))
	if 1+len(others) < groupAtLeast {
		for _, w := range others {
			w.told <- result{alone: true}
		}
		a, err := g.wire.commit(ctx, lane, []message{leader.message})
		return a, nil, err
	}
	a, err := g.wire.commit(ctx, lane, append([]message{leader.message}, contents(others)...))
	return a, others, err
}

// stage begins a batch with the leader's message, and commits it with what has
// come until the lane has staged that: those whose answers have just gone out
// come back meanwhile.
func (g *group) stage(ctx context.Context, lane *Lane, leader *waiter) (ack, []*waiter, error) {
	id := nuid.Next()
	if err := g.wire.begin(ctx, lane, id, leader.message); err != nil {
		g.wire.count("batch", 1, err)
		return ack{}, nil, err
	}
	others := g.take(len(leader.message.body))
	a, err := g.wire.finish(ctx, lane, id, append([]message{leader.message}, contents(others)...), 1)
	g.wire.count("batch", 1+len(others), err)
	return a, others, err
}

func contents(list []*waiter) []message {
	messages := make([]message, len(list))
	for i, w := range list {
		messages[i] = w.message
	}
	return messages
}

// crowded says whether enough came together for the last commit that as many
// are likely to come for the next.
func (g *group) crowded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last >= groupAtLeast
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

// handOn makes the first who waits the leader of the next commit, if anybody
// waits. The one that ends had size messages.
func (g *group) handOn(size int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = size
	if len(g.waiting) == 0 {
		g.led = false
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
