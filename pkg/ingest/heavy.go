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

// sent is what this process has tried to insert at once in vain.
type sent struct {
	whole string    // token of the block
	until time.Time // when the last attempt at a piece of it ends at the latest that may still be running in the warehouse
	again time.Time // insert nothing at once before
}

// trialsOf is what is known of a piece: nothing when another process has sent it.
func (s sent) trialsOf(token string) trials {
	if s.whole != wholeToken(token) {
		return trials{}
	}
	return trials{token: token, loose: s.until}
}

// togetherAgain is how long blocks are inserted one piece after the other when
// several at once have failed: they may have been too much at once.
const togetherAgain = time.Minute

// pieces is how many pieces of the block are inserted at once: several when more is
// waiting, so that the lane goes as fast as several inserts do, and one while it
// keeps up, so that there are few parts to merge.
func (s *session) pieces(b *block) int {
	if !b.full || time.Now().Before(s.sent.again) {
		return 1
	}
	return max(1, min(s.cfg.Together, b.columns.Bytes()/s.cfg.PieceBytes))
}

// allAtOnce inserts all pieces of a block that was just claimed in pieces for that,
// each under its own token, and returns true when all of them are stored. A
// crash here leaves each of them inserted or not; the claim says that of all.
//
// When one fails, its piece and those that are stored are inserted one after the
// other, as after a crash.
func (s *session) allAtOnce(ctx context.Context, b *block) (stored bool, err error) {
	c := *s.position.Claim
	if b.together == 1 || s.repeated {
		return false, nil
	}
	if known, err := s.isRemembered(ctx, c); err != nil || !known {
		return false, err
	}
	claims := b.claims(c)
	errs := make([]error, len(claims))
	start := time.Now()
	s.beat()
	var inserts, beating sync.WaitGroup
	done := make(chan struct{})
	beating.Go(func() { s.beatWhile(s.cfg.InsertTime, done) })
	for i, piece := range claims {
		named := s.named(b, piece)
		named.Timeout = s.cfg.InsertTime
		inserts.Go(func() { errs[i] = s.parts.Warehouse.Insert(ctx, named) })
	}
	inserts.Wait()
	close(done)
	beating.Wait()
	s.beat()

	var running, poison bool
	for i, one := range errs {
		var failed *record.StoreError
		switch {
		case one == nil:
		case errors.As(one, &failed) && failed.Class == record.ClassPoison:
			poison = true
		case err == nil:
			err = fmt.Errorf("insert block %s: %w", claims[i].Token, one)
		}
		running = running || one != nil && (failed == nil || failed.Code == 0)
	}
	if err == nil && !poison {
		s.inserted(ctx, b, 0, b.columns.Rows(), time.Since(start))
		return true, nil
	}
	s.repeated = true
	s.sent = sent{whole: wholeToken(c.Token), again: time.Now().Add(togetherAgain)}
	if running { // the warehouse has not said that it is done with it
		s.sent.until = time.Now().Add(s.cfg.InsertTime + insertBeat)
	}
	s.trials = s.sent.trialsOf(c.Token)
	return false, err
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
	return s.reclaim(ctx, b, from, from+half, "")
}
