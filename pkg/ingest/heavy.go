package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sluice/pkg/record"
)

const (
	// heavyTries is how often the same rows are inserted again that were too much
	// for the warehouse, before fewer are claimed: it may be busy for a moment.
	heavyTries = 3

	// longestInsert is the longest attempt, as so many times the first one.
	longestInsert = 10

	// insertBeat is how often the heart beats while an insert is in flight, which
	// ends by itself.
	insertBeat = 15 * time.Second
)

// trials is what became of the inserts of one claim, as far as this lane knows.
type trials struct {
	token string
	heavy int       // of those that ran out of memory or time
	slow  int       // of those of the whole block that ran out of time
	loose time.Time // until when one of them, or of another process, may still be running in the warehouse
}

// tooHeavy says that fewer rows should be claimed. While another insert of the
// same rows may still be running, which would store them later, they may not.
func (t trials) tooHeavy(now time.Time) bool { return t.heavy >= heavyTries && now.After(t.loose) }

// try inserts what the claim names. One that took too long gets more time.
func (s *session) try(ctx context.Context, b *block, c record.Claim) error {
	if s.trials.token != c.Token {
		// Another instance has claimed it, and may be at it.
		s.trials = trials{token: c.Token, loose: time.Now().Add(longestInsert*s.cfg.InsertTime + insertBeat)}
	}
	named := s.named(b, c)
	named.Timeout = s.cfg.InsertTime * time.Duration(min(longestInsert, 1<<min(s.trials.slow, longestInsert)))
	var beating sync.WaitGroup
	done := make(chan struct{})
	beating.Go(func() { s.beatWhile(named.Timeout, done) })
	err := s.parts.Warehouse.Insert(ctx, named)
	close(done)
	beating.Wait()

	var failed *record.StoreError
	if !errors.As(err, &failed) {
		return err
	}
	if failed.Code == 0 { // the warehouse has not said that it is done with it
		s.trials.loose = time.Now().Add(named.Timeout + insertBeat)
	}
	if failed.Slow {
		s.trials.slow++
	}
	if failed.Slow || failed.Large {
		s.trials.heavy++
	}
	return err
}

// beatWhile beats while an insert may take its time, and no longer: one that does
// not end then hangs.
func (s *session) beatWhile(timeout time.Duration, done <-chan struct{}) {
	tick := time.NewTicker(insertBeat)
	defer tick.Stop()
	for left := timeout - insertBeat; left > 0; left -= insertBeat {
		select {
		case <-tick.C:
			s.beat()
		case <-done:
			return
		}
	}
}

// shrink claims half of the rows from to to-1, which were too much at once for
// the warehouse; unless some of them are there already: then only the same token
// can complete them.
func (s *session) shrink(ctx context.Context, b *block, from, to int, heavy error) error {
	_, there, err := s.months(ctx, b, *s.position.Claim)
	if err != nil {
		return err
	}
	if len(there) > 0 {
		return fmt.Errorf("the table has taken the rows of %v of it: %w", there, heavy)
	}
	half := (to - from) / 2
	s.log.WarnContext(ctx, "claiming fewer rows: more are too much for ClickHouse at once", "rows", to-from, "next", half, "error", heavy)
	s.bearable = half
	return s.reclaim(ctx, from, from+half, "")
}
