package ingest

import (
	"time"

	"sluice/pkg/flow"
)

// strain is what ClickHouse has borne of late, as this process has seen it.
type strain struct {
	heavy      int       // inserts of the first open piece that took too much memory or time, since it was cut last
	slow       int       // inserts of the block that took too much time
	rows       int       // the rows of a piece that was cut for that; 0 when none was
	unanswered bool      // an insert of the block, by this process or another, may arrive yet
	rejected   int       // rows rejected since one was stored
	single     time.Time // until when pieces are inserted one after the other
}

const (
	// heavyTries is how often a piece is inserted again that took too much, before
	// it is cut: ClickHouse may be busy for a moment.
	heavyTries = 3

	// maxInsertTimes bounds an attempt, as so many times the first one.
	maxInsertTimes = 10

	// togetherAgain is how long pieces are inserted one after the other when several
	// at once have failed.
	togetherAgain = time.Minute
)

// note counts a failure.
func (t *strain) note(failed *flow.StoreError) {
	if failed.Slow {
		t.slow++
	}
	if failed.Slow || failed.Large {
		t.heavy++
	}
}

// isTooHeavy says that a piece is to be cut.
func (t *strain) isTooHeavy() bool { return t.heavy >= heavyTries }

// timeout is how long an insert may take: after one that took too long twice as
// long.
func (t *strain) timeout(first time.Duration) time.Duration {
	return first * time.Duration(min(maxInsertTimes, 1<<min(t.slow, maxInsertTimes)))
}
