package ingest

import (
	"time"

	"sluice/pkg/flow"
)

// strain is the recent resource failures of ClickHouse, as seen by this process.
type strain struct {
	heavy      int       // inserts of the first open piece over a memory or time limit, since its last cut
	slow       int       // inserts of the block over the time limit
	rows       int       // rows of a piece after such a cut; 0: none
	unanswered bool      // an insert of the block, by any process, may still arrive
	rejected   int       // rows rejected since one was stored
	single     time.Time // until when pieces are inserted sequentially
}

const (
	// heavyTries is how often a piece over a limit is inserted before it is cut: ClickHouse may be busy for a moment.
	heavyTries = 3

	// maxInsertTimes bounds the timeout, as a multiple of the first.
	maxInsertTimes = 10

	// togetherAgain is how long pieces are inserted sequentially after concurrent inserts
	// failed.
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

// isTooHeavy reports whether to cut the piece.
func (t *strain) isTooHeavy() bool { return t.heavy >= heavyTries }

// timeout is the timeout of an insert: doubled after each one that exceeded it.
func (t *strain) timeout(first time.Duration) time.Duration {
	return first * time.Duration(min(maxInsertTimes, 1<<min(t.slow, maxInsertTimes)))
}
