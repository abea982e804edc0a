package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/ingest/dedup"
	"sluice/pkg/record"
)

// Pauses of an idle store.
const (
	advanceAfter = 100 * time.Millisecond // record the last block as done without a next one
	idleTick     = time.Second            // heartbeat
)

// store stores blocks in order.
func (s *session) store(ctx context.Context, blocks <-chan *block, free chan<- *block) error {
	for {
		var idle <-chan time.Time
		if s.isPending() {
			idle = time.After(advanceAfter)
		}
		select {
		case b := <-blocks:
			if b == nil { // nothing has arrived for a while
				if s.state.Claim == nil {
					s.recovered()
				}
				s.beat()
				continue
			}
			err := s.block(ctx, b)
			s.release(b)
			if err != nil {
				return err
			}
			free <- b
		case <-idle:
			if err := s.advance(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			// Without this the block would be inserted again at the next start and
			// deduplicated by its tokens: slower, but correct.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTime)
			defer cancel()
			return errors.Join(ctx.Err(), s.advance(ctx))
		}
	}
}

// block takes one block through all its steps. After ctx has ended it continues for up to Config.DrainTime.
func (s *session) block(ctx context.Context, b *block) error {
	ctx, cancel := draining(ctx, s.cfg.DrainTime)
	defer cancel()
	if err := s.claim(ctx, b); err != nil {
		return err
	}
	// Claimed. A crash here leaves the claim: the same messages are read again, with the same
	// tokens.
	for _, d := range b.dead {
		if err := s.publishDead(ctx, d); err != nil {
			return err
		}
	}
	// Dead-lettered. A crash here does so again, which changes nothing.
	settled, err := s.pieces(ctx, b)
	if err != nil {
		return err
	}
	// Stored. A crash here repeats the inserts; their tokens make that harmless.
	if err := s.writeDown(ctx, b.changes); err != nil {
		return err
	}
	// Complete. A crash here repeats all of it, which changes nothing.
	return s.complete(b, settled)
}

// claim writes the block with its dropped rows into the lane state, which also records the block before as done. A block
// that is already claimed must be the same; its dropped rows are in the claim and are not decided again.
func (s *session) claim(ctx context.Context, b *block) error {
	if s.state.Claim != nil && !s.isPending() {
		return s.reclaim(ctx, b, *s.state.Claim)
	}
	if s.state.Held(s.cfg.Now()) {
		// The block is read again when the lane resumes.
		return errors.Join(s.advance(ctx), errHeld)
	}
	if err := s.checkMoves(ctx, b.moves); err != nil {
		return err
	}
	places, err := s.decide(ctx, b)
	if err != nil {
		return err
	}
	// Decided. A crash here leaves nothing: it is decided again, perhaps in other blocks.
	if _, err := s.marks(ctx, s.next, nil); err != nil {
		return err
	}
	clock, err := s.deps.Tables.Clock(ctx)
	if err != nil {
		return err
	}
	c := b.decided(places)
	c.ClaimedAt, c.StoredAt = clock.UnixMilli(), max(clock.UnixMilli(), b.end.Stamp/int64(time.Millisecond))
	if n := b.columns.Rows(); n > 0 {
		c.Pieces = []flow.Piece{{To: b.rows(), State: flow.PieceWaiting}}
		k := s.inserts(b)
		if c, err = c.Next([]flow.Outcome{{Result: flow.ResultOpened, Ends: b.ends(c.Piece(0), (n+k-1)/k)}}); err != nil {
			return &haltError{err}
		}
	}
	next := s.next
	next.Claim = &c
	if err := next.Check(); err != nil {
		return &haltError{err}
	}
	s.repeated, s.strain = false, strain{rejected: s.strain.rejected, single: s.strain.single}
	claimed := s.cfg.Now()
	err = s.swap(ctx, next)
	s.remembered = claimed
	return err
}

// decide returns the deduplicated rows of a block, by place: stored records, and those without a deduplication key whose
// request is repeated. Rows of forgotten instances are not among them.
func (s *session) decide(ctx context.Context, b *block) ([]flow.Run, error) {
	known, err := s.records.Decide(ctx, &b.columns, s.next.Base(), s.share(s.cfg.KnownBytes), s)
	if err != nil {
		return nil, err
	}
	if len(b.requests) > 0 {
		again, err := s.repeatedRequests(ctx, b)
		if err != nil {
			return nil, err
		}
		known = dedup.Merge(known, again)
	}
	s.requests.Decided(b.first, b.end)
	s.metrics.window.Set(s.requests.Reach().Seconds())
	if len(b.skipped) > 0 {
		known = without(known, b.skipped)
	}
	return known, nil
}

// repeatedRequests returns the rows of repeated requests, by place, and adds the block's requests to the window.
func (s *session) repeatedRequests(ctx context.Context, b *block) ([]flow.Run, error) {
	batch := dedup.Batch{First: b.first, Requests: b.requests, Columns: &b.columns, Moves: s.next.Moves}
	return s.requests.Repeated(ctx, batch, s.share(s.cfg.RepeatBytes), func(ctx context.Context, from, to uint64, f func(*flow.Entry) error) error {
		s.metrics.reread.Inc()
		return s.heads(ctx, from, to, f)
	})
}

// pieces stores the rows of the claim, and returns it with all pieces settled. An ordinary block is one round of one
// insert. Rejected rows, memory limits, many months, and claims left by a crash take more rounds of the same: the
// outcome of each piece goes into flow.Claim.Next, and the result into the lane state before the next round.
func (s *session) pieces(ctx context.Context, b *block) (flow.Claim, error) {
	for {
		c := *s.state.Claim
		if c.IsSettled() {
			return c, nil
		}
		if !s.isFresh() {
			var err error
			if c, err = s.renewed(ctx, b, c); err != nil {
				return c, err
			}
		}
		var open []int // inserted concurrently
		outcomes := make([]flow.Outcome, len(c.Pieces))
		for i, p := range c.Pieces {
			switch {
			case p.State == flow.PieceOpen && len(open) < s.cfg.Together && (len(open) == 0 || time.Now().After(s.strain.single)):
				open = append(open, i)
			case p.State == flow.PieceDead && !c.InCut(i): // an earlier insert may still store rows of a cut
				var err error
				if outcomes[i], err = s.deadLetter(ctx, b, c.Piece(i), p.Reason); err != nil {
					return c, err
				}
			}
		}
		// Dead letters are written. A crash here writes them again.
		failed := s.insertOpen(ctx, b, c, open, outcomes)
		// Inserted. A crash here inserts again under the same tokens, and counts.
		for i, p := range c.Pieces {
			if p.State == flow.PieceWaiting {
				outcomes[i] = flow.Outcome{Result: flow.ResultOpened, Ends: b.ends(c.Piece(i), s.strain.rows)}
			}
		}
		next, err := c.Next(outcomes)
		if err != nil {
			return c, &haltError{errors.Join(err, failed)}
		}
		if next.IsSettled() {
			return next, nil // the next claim's write records it
		}
		if !next.Equal(c) {
			s.next.Claim = &next
			if err := s.swap(ctx, s.next); err != nil {
				return c, errors.Join(err, failed)
			}
		}
		if failed != nil {
			return c, failed
		}
	}
}

// insertOpen inserts open pieces concurrently and returns their outcomes. The error is the first failure of a piece, which
// the next session retries.
func (s *session) insertOpen(ctx context.Context, b *block, c flow.Claim, open []int, outcomes []flow.Outcome) (failed error) {
	if len(open) == 0 {
		return nil
	}
	s.beat()
	defer s.beat()
	if !s.isFresh() {
		if known, err := s.isRemembered(ctx, c); err != nil {
			return err
		} else if !known {
			outcomes[open[0]], err = s.byLooking(ctx, b, c, open[0])
			return err
		}
	}
	for j, err := range s.insertAll(ctx, b, c, open) {
		if len(open) > 1 && err != nil {
			s.strain.single = time.Now().Add(togetherAgain) // concurrency may have been the cause
		}
		if outcomes[open[j]], err = s.judge(ctx, b, c, open[j], err); err != nil && failed == nil {
			failed = err
		}
	}
	return failed
}

// insertAll inserts pieces concurrently, each under its token.
func (s *session) insertAll(ctx context.Context, b *block, c flow.Claim, open []int) []error {
	errs := make([]error, len(open))
	timeout := s.strain.timeout(s.cfg.InsertTime)
	start, done := time.Now(), make(chan struct{})
	var inserts, beating sync.WaitGroup
	beating.Go(func() { s.beatWhile(timeout, done) })
	for j, i := range open {
		rows := record.Block{
			Columns: &b.columns, From: b.at(c.Piece(i).From), To: b.at(c.Piece(i).To),
			Token: c.Token(s.number, s.state.IncarnationOf(c.First), i), StoredAt: c.StoredAt, Timeout: timeout,
		}
		inserts.Go(func() {
			if err := s.deps.Tables.Insert(ctx, rows); err != nil {
				errs[j] = fmt.Errorf("insert %s: %w", rows.Token, err)
			}
		})
	}
	inserts.Wait()
	close(done)
	beating.Wait()
	if took := time.Since(start); !slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		s.took.Store(int64(took))
		s.metrics.insertSeconds.Observe(took.Seconds())
	}
	return errs
}

// complete marks a block as done, which the next write of the lane state records.
func (s *session) complete(b *block, c flow.Claim) error {
	became := b.totals
	became.Stored = uint64(b.columns.Rows() - c.DeadLettered)
	became.DeadLettered += uint64(c.DeadLettered)
	next, err := s.next.Apply(c, became, c.LastRow)
	if err != nil {
		return &haltError{err}
	}
	// Later decisions are in later claims.
	next.DedupFrom, next.VoidThrough = s.requests.Needed(next.Done), max(next.VoidThrough, b.end.Void)
	next.Moves = flow.AddMoves(next.Moves, b.moved())
	s.next = next
	for _, move := range b.moved() {
		s.records.Forget(move.Source)
	}
	s.metrics.deduplicated.Add(float64(became.Deduplicated))
	s.metrics.forgotten.Add(float64(became.Forgotten))
	s.metrics.void.Add(float64(became.Void))
	s.recovered()
	s.beat()
	s.metrics.observe(b)
	s.metrics.lag.end()
	return nil
}

// isPending reports whether a block is stored but not recorded as done.
func (s *session) isPending() bool { return s.next.Done != s.state.Done }

// advance records the stored block as done.
func (s *session) advance(ctx context.Context) error {
	if !s.isPending() {
		return nil
	}
	return s.swap(ctx, s.next)
}

// swap writes the lane state. After an error the outcome is unknown: the session ends, and the next one reads it.
func (s *session) swap(ctx context.Context, next flow.LaneState) error {
	next, err := s.deps.States.CompareAndSwap(ctx, s.number, next)
	if err != nil {
		return fmt.Errorf("write the lane state: %w", err)
	}
	s.state, s.next = next, next
	s.metrics.checkpoint.Set(float64(next.Done))
	return nil
}

// draining is a context that ends d after ctx.
func draining(ctx context.Context, d time.Duration) (context.Context, func()) {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return inner, func() { stop(); cancel() }
}
