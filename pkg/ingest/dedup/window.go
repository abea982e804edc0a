package dedup

import (
	"time"

	"github.com/zeebo/xxh3"

	"sluice/pkg/flow"
)

// window holds the places of a lane's recent requests with records without a deduplication key: 16 bytes each. It stores a
// fingerprint and a sequence; reading the message confirms a match.
//
// Requests are in a ring, in stream order. Each is chained to the previous one with the same end of its fingerprint, so that
// requests that have left the ring need no removal: a chain ends where it leads out of the ring.
// The zero value with a limit is ready.
type window struct {
	limit int // bytes

	ring  []occurrence // a power of two; request n is at n modulo its length
	heads []uint32     // by the end of a fingerprint, the lower half of the number of its last request; 0 for none
	begin uint64       // number of the first request in the ring
	end   uint64       // number after the last; no number ends in 32 zero bits

	last  uint64 // the last message that was added, with or without requests
	ticks []tick // of the blocks, in order
	needs []need // the relevant needs of requests; see need
	cut   uint64 // the last message dropped to save memory; 0: none
}

// occurrence is a request of a message.
type occurrence struct {
	fingerprint uint32
	seq         uint32 // of the message, its lower half
	before      uint32 // lower half of the number of the request before it in its chain; 0 for none
}

// tick is the stream time of a message.
type tick struct {
	seq uint64
	at  time.Duration
}

// need is a message with a request, and the first message needed to decide whether it is void. Only the minimum
// matters, so a later need that begins as early replaces one.
type need struct{ seq, first uint64 }

const (
	occurrenceBytes = 16 // with its head
	ringAtFirst     = 1 << 10
)

// reset drops everything up to a message.
func (w *window) reset(last uint64) {
	clear(w.heads)
	w.begin, w.end, w.last, w.cut = 1, 1, last, 0
	w.ticks, w.needs = w.ticks[:0], w.needs[:0]
}

// fingerprint is the search key of a request.
func fingerprint(id, hash string) uint32 {
	return uint32(xxh3.HashString(id)) ^ uint32(xxh3.HashString(hash)>>32)
}

// find calls look with the messages in a range that may hold the same request, the last first, until it has enough.
func (w *window) find(fp uint32, first, last uint64, look func(seq uint64) (enough bool, err error)) error {
	if len(w.heads) == 0 {
		return nil
	}
	before := uint64(0)
	for n, ok := w.number(w.heads[fp&uint32(len(w.heads)-1)], w.end); ok; {
		o := w.ring[n&uint64(len(w.ring)-1)]
		seq := last - uint64(uint32(last)-o.seq)
		if o.fingerprint == fp && seq != before && first <= seq && seq <= last {
			enough, err := look(seq)
			if enough || err != nil {
				return err
			}
			before = seq
		}
		n, ok = w.number(o.before, n)
	}
	return nil
}

// number resolves a link to a request before another; false if it has left the ring.
func (w *window) number(link uint32, before uint64) (uint64, bool) {
	n := before - uint64(uint32(before)-link)
	return n, link != 0 && n >= w.begin && n < before
}

// add adds a request of a message, which needs the messages from first on.
func (w *window) add(fp uint32, seq, first uint64) {
	if w.end-w.begin == uint64(len(w.ring)) {
		w.makeRoom(seq)
	}
	w.put(fp, uint32(seq))
	for len(w.needs) > 0 && w.needs[len(w.needs)-1].first >= first {
		w.needs = w.needs[:len(w.needs)-1]
	}
	w.needs = append(w.needs, need{seq, first})
}

func (w *window) put(fp, seq uint32) {
	if uint32(w.end) == 0 {
		w.end++ // 0 means no link
	}
	head := &w.heads[fp&uint32(len(w.heads)-1)]
	w.ring[w.end&uint64(len(w.ring)-1)] = occurrence{fp, seq, *head}
	*head = uint32(w.end)
	w.end++
}

// makeRoom doubles the ring, or drops the oldest requests.
func (w *window) makeRoom(seq uint64) {
	size := max(2*len(w.ring), ringAtFirst)
	if len(w.ring) > 0 && size*occurrenceBytes > w.limit {
		give := uint64(max(len(w.ring)/64, 2)) // two: put may skip a number
		w.begin += give
		w.cut = w.sequence(w.begin-1, seq)
		return
	}
	ring, begin, end := w.ring, w.begin, w.end
	w.ring, w.heads = make([]occurrence, size), make([]uint32, size)
	w.begin = max(begin, 1)
	w.end = w.begin
	for n := begin; n < end; n++ {
		if uint32(n) != 0 {
			o := ring[n&uint64(len(ring)-1)]
			w.put(o.fingerprint, o.seq)
		}
	}
}

// sequence is the message of a request, at most last.
func (w *window) sequence(n, last uint64) uint64 {
	return last - uint64(uint32(last)-w.ring[n&uint64(len(w.ring)-1)].seq)
}

// expire drops what has left the window, after all messages up to last were added.
func (w *window) expire(last Moment) {
	if last.Seq > w.last {
		w.last = last.Seq
		w.ticks = append(w.ticks, tick{last.Seq, last.now})
	}
	for w.begin < w.end && w.sequence(w.begin, w.last) < last.Reach {
		w.begin++
	}
	for len(w.needs) > 0 && w.needs[0].seq < last.Reach {
		w.needs = w.needs[1:]
	}
	for len(w.ticks) > 1 && w.ticks[0].seq < last.Reach {
		w.ticks = w.ticks[1:]
	}
}

// needed is the first message needed to rebuild the window, at most the one after a checkpoint.
func (w *window) needed(done uint64) uint64 {
	if len(w.needs) > 0 {
		return min(w.needs[0].first, done+1)
	}
	return done + 1
}

// reach is the covered stream time.
func (w *window) reach(full time.Duration) time.Duration {
	if len(w.ticks) == 0 || w.cut < w.ticks[0].seq {
		return full
	}
	now := w.ticks[len(w.ticks)-1].at
	for _, t := range w.ticks {
		if t.seq >= w.cut {
			return now - t.at
		}
	}
	return 0
}

// clock is the stream time of the messages of a lane: the sum of the steps between neighbouring ones. It keeps the times within the
// window before the last one.
type clock struct {
	window time.Duration

	first uint64          // the first message it has; 0: none
	times []time.Duration // of first, first+1, …
	last  time.Time       // stored time of the last one
	void  uint64          // entries with a LogEnd up to this are void,
	some  bool            // if some is set; not for a lane that starts within the window
}

// begin restarts after a checkpoint with its VoidThrough; 0: nothing is void.
func (c *clock) begin(void uint64) {
	*c = clock{window: c.window, times: c.times[:0], void: void, some: void > 0}
}

// knows reports whether a message continues the clock.
func (c *clock) knows(seq uint64) bool {
	return c.first > 0 && c.first <= seq && seq <= c.first+uint64(len(c.times))
}

// tick adds the next message, unless already added. If it does not follow the last one, the clock restarts.
func (c *clock) tick(e *flow.Entry) {
	next := c.first + uint64(len(c.times))
	switch {
	case c.first == 0 || e.Seq > next:
		c.first, c.times = e.Seq, c.times[:0]
	case e.Seq < next:
		return
	}
	var now time.Duration
	if n := len(c.times); n > 0 {
		now = c.times[n-1] + flow.Step(c.last, e.Stored)
	}
	c.times, c.last = append(c.times, now), e.Stored
	old := 0
	for now-c.times[old] > c.window {
		old++
	}
	if old > 0 {
		c.first += uint64(old)
		c.void, c.some = max(c.void, c.first-2), true
		c.times = c.times[old:]
	}
}

// Moment is the state of a clock after a message.
type Moment struct {
	Seq   uint64 // the message
	Stamp int64  // when the lane stored it, ns since 1970
	Reach uint64 // the first message within the window before it
	Void  uint64 // entries with a LogEnd up to this are void

	now time.Duration // stream time
}

// moment is the state after a message within the window.
func (c *clock) moment(e *flow.Entry) Moment {
	now, old := c.times[e.Seq-c.first], uint64(0)
	for now-c.times[old] > c.window {
		old++
	}
	m := Moment{Seq: e.Seq, Stamp: e.Stored.UnixNano(), Reach: c.first + old, Void: c.void, now: now}
	if old > 0 {
		m.Void = max(m.Void, m.Reach-2)
	}
	return m
}

// isVoid reports whether an added entry came too late: more stream time than its patience has passed since its LogEnd,
// and its request may have been repeated outside the window.
func (c *clock) isVoid(e *flow.Entry) bool {
	if e.Patience == 0 {
		return false
	}
	next := e.LogEnd + 1
	if next > e.Seq { // the lane was set back after its api had read it
		return true
	}
	now := c.times[e.Seq-c.first]
	if next < c.first {
		return c.some && e.LogEnd <= c.void || now-c.times[0] > e.Patience
	}
	return now-c.times[next-c.first] > e.Patience
}
