package stream

import "time"

// drain estimates how fast a full lane makes room, from what was purged of it
// in the last minutes.
type drain struct {
	seen  []freed
	first uint64 // First at the last observation
	mean  float64
}

type freed struct {
	at    time.Time
	bytes float64
}

const (
	drainSpan = 5 * time.Minute

	minRetryAfter     = time.Second
	maxRetryAfter     = time.Minute
	unknownRetryAfter = 10 * time.Second
)

// observe notes what of the lane was purged since the last observation.
func (d *drain) observe(l *Lane, now time.Time) {
	var gone float64
	if d.first != 0 && l.First > d.first {
		gone = float64(l.First-d.first) * d.mean
	}
	if l.Messages > 0 {
		d.mean = float64(l.Bytes) / float64(l.Messages)
	}
	d.first = l.First
	// A copy: the lane set before this one is still being read.
	seen := make([]freed, 0, len(d.seen)+1)
	for _, f := range d.seen {
		if now.Sub(f.at) < drainSpan {
			seen = append(seen, f)
		}
	}
	d.seen = append(seen, freed{at: now, bytes: gone})
}

// after is how long until need bytes have been freed at the rate seen, between
// a second and a minute. When nothing was freed in the whole span nobody knows,
// and the longest wait is the honest answer; right after a start a shorter one
// finds out.
func (d *drain) after(need int, now time.Time) time.Duration {
	if len(d.seen) < 2 {
		return unknownRetryAfter
	}
	span := now.Sub(d.seen[0].at)
	var sum float64
	for _, f := range d.seen[1:] { // the first begins the span
		sum += f.bytes
	}
	if sum == 0 {
		if span < maxRetryAfter {
			return unknownRetryAfter
		}
		return maxRetryAfter
	}
	wait := time.Duration(float64(need) / sum * float64(span))
	return min(max(wait.Round(time.Second), minRetryAfter), maxRetryAfter)
}
