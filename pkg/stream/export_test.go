package stream

import (
	"context"
	"time"
)

// Origin is what names a dead letter in its subjects.
func Origin(d DeadLetter) string { return d.origin }

// KeepFrom is what a Purger keeps.
var KeepFrom = keepFrom

// SetMargin sets what a Purger keeps beyond the duplicate window.
func (p *Purger) SetMargin(d time.Duration) { p.margin = d }

// FirstSince looks a message up by time.
func (s *Stream) FirstSince(ctx context.Context, lane int, since time.Time) (uint64, error) {
	return s.firstSince(ctx, lane, since)
}
