package ingest

import (
	"time"

	"sluice/pkg/record"
)

// clock is the stream time of the messages of a lane: the sum of the steps
// between neighbouring ones. It knows that of every message within the window
// before the last one. Owned by fill.
type clock struct {
	window time.Duration

	first uint64          // the first message it knows; 0 when it knows none
	times []time.Duration // of first, first+1, …
	last  time.Time       // when the last one was stored
	void  uint64          // an entry whose api knew no message behind this one is void,
	some  bool            // if any is: a lane whose beginning is within the window has none
}

// begin begins anew behind a position, of which it is known what is void: 0 is what
// a position says of which nothing is.
func (c *clock) begin(void uint64) {
	*c = clock{window: c.window, times: c.times[:0], void: void, some: void > 0}
}

// knows says whether the clock can go on with a message.
func (c *clock) knows(seq uint64) bool {
	return c.first > 0 && c.first <= seq && seq <= c.first+uint64(len(c.times))
}

// tick adds the next message, unless it was added before. When it does not follow
// the one before, the clock begins anew.
func (c *clock) tick(e *record.Entry) {
	next := c.first + uint64(len(c.times))
	switch {
	case c.first == 0 || e.Seq > next:
		c.first, c.times = e.Seq, c.times[:0]
	case e.Seq < next:
		return
	}
	var now time.Duration
	if n := len(c.times); n > 0 {
		now = c.times[n-1] + record.Step(c.last, e.Stored)
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

// isVoid says whether an entry, which was added, has come too late to count:
// more than its patience behind what its api knew. Its request may have been
// repeated, and forgotten since. What is not known any more is older.
func (c *clock) isVoid(e *record.Entry) bool {
	if e.Patience == 0 {
		return false
	}
	next := e.Knew + 1
	if next > e.Seq { // it is of an earlier time of the lane, and its api knows
		return true
	}
	now := c.times[e.Seq-c.first]
	if next < c.first {
		return c.some && e.Knew <= c.void || now-c.times[0] > e.Patience
	}
	return now-c.times[next-c.first] > e.Patience
}
