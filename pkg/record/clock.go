package record

import "time"

// longestStep bounds what one message adds to stream time.
const longestStep = 30 * time.Second

// Step is the stream time between two neighbouring messages of a lane, by when
// the lane has stored them. A clock that is set, another server's clock and an
// outage count for 30 s at most, and never backwards: so that none of them makes
// a request forgotten that is being repeated.
func Step(before, after time.Time) time.Duration {
	return min(max(after.Sub(before), 0), longestStep)
}
