package dedup

import (
	"time"

	"github.com/zeebo/xxh3"

	"sluice/pkg/flow"
)

// window knows where the requests of a lane stand that hold records without an
// identity of their own, as far back as a repeat of them is to be known: 16
// bytes for each. It knows a fingerprint and where to look; that a request is the
// same is seen by reading its message.
//
// Requests stand in a ring, in the order of the stream. Each is chained to the
// one before it whose fingerprint ends alike, so that what has left the ring
// needs no removing: a chain ends where it leads out of it.
//
// The zero value with a limit is ready.
type window struct {
	limit int // bytes

	ring  []occurrence // a power of two; request n is at n modulo its length
	heads []uint32     // by the end of a fingerprint, the lower half of the number of its last request; 0 for none
	begin uint64       // number of the first request that is in the ring
	end   uint64       // and of the one behind the last; no number ends in 32 zero bits

	last  uint64 // the last message that was added, with or without requests
	ticks []tick // of the blocks, in order
	needs []need // what the requests need, those that matter; see need
	cut   uint64 // the last message that was given up to save memory; 0 when none was
}

// occurrence is a request in a message.
type occurrence struct {
	fingerprint uint32
	seq         uint32 // of the message, its lower half
	before      uint32 // lower half of the number of the request before it in its chain; 0 for none
}

// tick is when a message was, in stream time.
type tick struct {
	seq uint64
	at  time.Duration
}

// need is a message with a request, and the first message that it takes to see
// whether it is void. Of several the least is sought, so that one with a later
// one behind it that needs as much is let go.
type need struct{ seq, first uint64 }

const (
	occurrenceBytes = 16 // with its head
	ringAtFirst     = 1 << 10
)

// reset forgets everything up to a message.
func (w *window) reset(last uint64) {
	clear(w.heads)
	w.begin, w.end, w.last, w.cut = 1, 1, last, 0
	w.ticks, w.needs = w.ticks[:0], w.needs[:0]
}

// fingerprint is by what a request is looked for.
func fingerprint(id, hash string) uint32 {
	return uint32(xxh3.HashString(id)) ^ uint32(xxh3.HashString(hash)>>32)
}

// find calls look with the messages from one to another that may hold the same
// request, the last one first, until it has enough.
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

// number is which request a link names, of those before one; false when it has
// left the ring.
func (w *window) number(link uint32, before uint64) (uint64, bool) {
	n := before - uint64(uint32(before)-link)
	return n, link != 0 && n >= w.begin && n < before
}

// add adds a request of a message, which takes the messages from first on to be
// judged.
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
		w.end++ // 0 is no link
	}
	head := &w.heads[fp&uint32(len(w.heads)-1)]
	w.ring[w.end&uint64(len(w.ring)-1)] = occurrence{fp, seq, *head}
	*head = uint32(w.end)
	w.end++
}

// makeRoom makes the ring twice as large, or gives up the oldest requests.
func (w *window) makeRoom(seq uint64) {
	size := max(2*len(w.ring), ringAtFirst)
	if len(w.ring) > 0 && size*occurrenceBytes > w.limit {
		give := uint64(max(len(w.ring)/64, 2)) // two: put may pass over a number
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

// sequence is the message of a request, none of which is behind last.
func (w *window) sequence(n, last uint64) uint64 {
	return last - uint64(uint32(last)-w.ring[n&uint64(len(w.ring)-1)].seq)
}

// expire lets go of what is not within the window any more, now that all up to a
// message were added.
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

// needed is the first message that it takes to know all this again, at most the
// one behind a position.
func (w *window) needed(done uint64) uint64 {
	if len(w.needs) > 0 {
		return min(w.needs[0].first, done+1)
	}
	return done + 1
}

// reach is how far back in stream time requests are known.
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

// clock is the stream time of the messages of a lane: the sum of the steps
// between neighbouring ones. It knows that of every message within the window
// before the last one.
type clock struct {
	window time.Duration

	first uint64          // the first message it knows; 0 when it knows none
	times []time.Duration // of first, first+1, …
	last  time.Time       // when the last one was stored
	void  uint64          // an entry whose api knew no message behind this one is void,
	some  bool            // if any is: a lane whose beginning is within the window has none
}

// begin begins anew behind a position, which says what is void; 0 when nothing is.
func (c *clock) begin(void uint64) {
	*c = clock{window: c.window, times: c.times[:0], void: void, some: void > 0}
}

// knows says whether the clock can go on with a message.
func (c *clock) knows(seq uint64) bool {
	return c.first > 0 && c.first <= seq && seq <= c.first+uint64(len(c.times))
}

// tick adds the next message, unless it was added before. When it does not follow
// the one before, the clock begins anew.
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

// Moment is what a clock says once a message was added.
type Moment struct {
	Seq   uint64 // the message
	Stamp int64  // when the lane took it, ns since 1970
	Reach uint64 // the first message within the window before it
	Void  uint64 // an entry whose api knew no message behind this one is void

	now time.Duration // stream time
}

// moment is what it said once a message was added that it still knows.
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

// isVoid says whether an entry, which was added, has come too late to count:
// more than its patience behind what its api knew. Its request may have been
// repeated, and forgotten since. What is not known any more is older.
func (c *clock) isVoid(e *flow.Entry) bool {
	if e.Patience == 0 {
		return false
	}
	next := e.LogEnd + 1
	if next > e.Seq { // it is of an earlier time of the lane, and its api knows
		return true
	}
	now := c.times[e.Seq-c.first]
	if next < c.first {
		return c.some && e.LogEnd <= c.void || now-c.times[0] > e.Patience
	}
	return now-c.times[next-c.first] > e.Patience
}
