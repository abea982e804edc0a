package measure

import (
	"context"
	"time"
)

// Number is a figure as the page has it.
func Number(v float64) string { return number(v) }

// Gaps are the times at which a clock that tells these times stood still.
func Gaps(ticks []time.Duration) []time.Duration {
	began, i := time.Now(), -1
	return gaps(context.Background(), func() time.Time { i++; return began.Add(ticks[i]) }, ticks[len(ticks)-1])
}

// AtMost and AtLeast are goals.
func AtMost(limit, stretch float64) *Goal  { return atMost(limit, stretch) }
func AtLeast(limit, stretch float64) *Goal { return atLeast(limit, stretch) }

// Sight is how many records could be queried so long after the beginning, and
// Message when one with so many records was due.
type (
	Sight   struct{ At, Rows int64 }
	Message struct{ Due, Rows int64 }
)

// Freshness is the quantile of how long records took, in the unit of At and Due.
func Freshness(seen []Sight, messages []Message, q float64) (int64, error) {
	var s []sight
	for _, v := range seen {
		s = append(s, sight{time.Unix(0, v.At), v.Rows})
	}
	var m []message
	for _, v := range messages {
		m = append(m, message{time.Unix(0, v.Due), v.Rows})
	}
	all, err := waits(s, m)
	return int64(quantile(all, q)), err
}
