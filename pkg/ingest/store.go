package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/ingest/repeats"
	"sluice/pkg/record"
)

// Pauses of a store that has nothing to do.
const (
	advanceAfter = 100 * time.Millisecond // record the last block as done, without a next one
	idleTick     = time.Second            // say that all is well
)

// store stores one block after the other.
func (s *session) store(ctx context.Context) error {
	idle := time.NewTimer(idleTick)
	defer idle.Stop()
	for {
		wait := idleTick
		if s.stored {
			wait = advanceAfter
		}
		idle.Reset(wait)
		select {
		case b := <-s.blocks:
			if err := s.traced(ctx, b, s.block); err != nil {
				return err
			}
			s.free <- b
		case <-idle.C:
			if err := s.advance(ctx); err != nil {
				return err
			}
			if s.position.Claim == nil {
				s.recovered()
			}
			// fill turns at least every idleTick while nothing waits for it
			// here; that it does not is for the watch on the heartbeat to see.
			if time.Since(time.Unix(0, s.turned.Load())) < 5*idleTick {
				s.beat()
			}
		case <-ctx.Done():
			// Without this the block would be inserted again at the next
			// start, and dropped for its token: slower, and as right.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTime)
			defer cancel()
			return errors.Join(ctx.Err(), s.advance(ctx))
		}
	}
}

// block takes one block through all its steps. It finishes what it has begun
// for a while after ctx has ended.
func (s *session) block(ctx context.Context, b *block) error {
	ctx, cancel := draining(ctx, s.cfg.DrainTime)
	defer cancel()
	if err := s.claim(ctx, b); err != nil {
		return err
	}
	// Claimed. A crash here leaves the claim: the same messages are read again,
	// to the same token.
	for _, d := range b.dead {
		if err := s.setAside(ctx, d); err != nil {
			return err
		}
	}
	// Set aside. A crash here sets aside again, which changes nothing.
	if err := s.rows(ctx, b); err != nil {
		return err
	}
	// Stored. A crash here repeats the insert; the token makes that harmless.
	if err := s.writeDown(ctx, b.changes); err != nil {
		return err
	}
	// Complete. A crash here repeats all of it, which changes nothing.
	s.stored = true
	s.moved.Read += b.totals.Read
	s.moved.Repeated += b.totals.Repeated
	s.moved.Dead += b.totals.Dead
	s.moved.Void += b.totals.Void
	s.metrics.repeated.Add(float64(b.totals.Repeated))
	s.metrics.void.Add(float64(b.totals.Void))
	s.recovered()
	s.beat()
	s.metrics.observe(b)
	s.metrics.lag.end()
	return nil
}

// claim fixes the block in the position, what is dropped of it included, and
// with the same write records the block before it as done. A block that is
// claimed already must be the same: what is dropped stands in the claim, and is
// not decided again.
func (s *session) claim(ctx context.Context, b *block) error {
	if c := s.position.Claim; c != nil && !s.stored {
		return s.reclaimed(ctx, b, c)
	}
	if s.position.Held(time.Now()) {
		// The block is read again when the lane goes on.
		return errors.Join(s.advance(ctx), errHeld)
	}
	runs, err := s.decide(ctx, b)
	if err != nil {
		return err
	}
	// Decided. A crash here leaves nothing: it is decided anew, about other
	// blocks perhaps.
	dropped := flow.FormatRuns(runs)
	c := &flow.Claim{
		First: b.first, Last: b.last, Stamp: b.stamp, Token: b.token(dropped),
		Dropped: dropped, Void: flow.FormatRuns(b.voids), At: time.Now().UnixMilli(),
	}
	b.drop(runs)
	b.cut(s.pieces(b))
	c.Token = togetherToken(c.Token, b.together)
	if len(b.ends) > 1 {
		c.To = b.ends[0]
		c.Token = pieceToken(c.Token, 0, c.To)
	}
	next := s.done()
	s.voidBehind = b.clock.Void
	next.Claim = c
	s.bearable, s.trials.slow = 0, 0
	return s.swap(ctx, next)
}

// decide says which rows of a block are repeated: records that are known, and those
// without an identity of their own whose request is.
func (s *session) decide(ctx context.Context, b *block) ([]flow.Run, error) {
	for _, source := range b.fences {
		s.known.Forget(source)
	}
	known, err := s.known.Decide(ctx, &b.columns, s.share(s.cfg.KnownBytes), s)
	if err != nil {
		return nil, err
	}
	again, err := s.repeatedRequests(ctx, b)
	return repeats.Merge(known, again), err
}

// Marks asks how far days reach; see repeats.Tables.
func (s *session) Marks(ctx context.Context, days []flow.SourceDay) (flow.Marks, error) {
	return s.marks(ctx, s.done(), days)
}

// Known asks which rows may be stored already; see repeats.Tables.
func (s *session) Known(ctx context.Context, c *record.Columns, rows []int, found func(*flow.Identity)) error {
	s.metrics.lookups.Inc()
	s.metrics.lookedUp.Add(float64(len(rows)))
	return s.deps.Warehouse.Known(ctx, c, rows, found)
}

// repeatedRequests returns the rows of requests that came before, and makes the
// requests of the block known.
func (s *session) repeatedRequests(ctx context.Context, b *block) ([]flow.Run, error) {
	batch := repeats.Batch{First: b.first, Last: b.clock, Requests: b.requests, Columns: &b.columns}
	runs, err := s.requests.Repeated(ctx, batch, s.share(s.cfg.RepeatBytes), func(ctx context.Context, from, to uint64, f func(*flow.Entry) error) error {
		s.metrics.readAgain.Inc()
		return s.heads(ctx, from, to, f)
	})
	if err != nil {
		return nil, err
	}
	s.metrics.reach.Set(s.requests.Reach().Seconds())
	return runs, nil
}

// heads reads what the headers of messages of the lane say.
func (l *lane) heads(ctx context.Context, from, to uint64, f func(*flow.Entry) error) error {
	return l.deps.Lanes.Heads(ctx, l.number, from, to, f)
}

// reclaimed checks that the block is the one that was claimed before this
// session, and drops what was dropped of it.
func (s *session) reclaimed(ctx context.Context, b *block, c *flow.Claim) error {
	runs, err := flow.ParseRuns(c.Dropped)
	if err != nil {
		return halt("the position is damaged: claim %s: %w", c, err)
	}
	pieces := piecesOf(c.Token)
	if token := togetherToken(b.token(c.Dropped), pieces); wholeToken(c.Token) != token {
		return halt("messages %s are not those that were claimed: their token is %s, the claim has %s", c, token, c.Token)
	}
	if n := len(runs); n > 0 && runs[n-1].To > b.columns.Rows() {
		return halt("the position is damaged: claim %s drops row %d of a block of %d", c, runs[n-1].To-1, b.columns.Rows())
	}
	// Its requests are to be known. What is repeated of them stands in the
	// claim.
	if _, err := s.repeatedRequests(ctx, b); err != nil {
		return err
	}
	b.drop(runs)
	if b.cut(pieces); b.together != pieces {
		return halt("the position is damaged: claim %s is of %d pieces at once, and its block cannot be", c, pieces)
	}
	s.repeated, s.voidBehind = true, b.clock.Void
	return nil
}

// advance records the block that is stored as done.
func (s *session) advance(ctx context.Context) error {
	if !s.stored {
		return nil
	}
	return s.swap(ctx, s.done())
}

// progress is the position with what was made of the claim so far.
func (s *session) progress() flow.Position {
	next := s.position
	next.Totals.Add(s.moved)
	next.Stored = s.lastRow
	if len(s.doubted) > 0 {
		days := append(slices.Clone(next.Recount), s.doubted...)
		slices.Sort(days)
		next.Recount = slices.Compact(days)
	}
	return next
}

// done is the position with its claim, which is stored, recorded.
func (s *session) done() flow.Position {
	next := s.progress()
	if next.Claim != nil {
		next.Done, next.Stamp, next.Claim = next.Claim.Last, next.Claim.Stamp, nil
		// What the claim after this one has decided stands in that claim.
		next.Window, next.Void = s.requests.Needed(next.Done), max(next.Void, s.voidBehind)
	}
	return next
}

// swap writes the position. After an error it is not known which one is there:
// the session ends, and the next one reads it.
func (s *session) swap(ctx context.Context, next flow.Position) error {
	claimed := time.Now()
	p, err := s.deps.Positions.Swap(ctx, s.number, next)
	if err != nil {
		return fmt.Errorf("move the position: %w", err)
	}
	if c := p.Claim; c != nil && (s.position.Claim == nil || s.position.Claim.Token != c.Token) {
		s.trials = trials{token: c.Token, slow: s.trials.slow} // it was not tried yet
	}
	s.position, s.stored, s.written = p, false, p.Revision
	s.moved, s.doubted, s.repeated, s.remembered = flow.Totals{}, nil, false, claimed
	s.metrics.done.Set(float64(p.Done))
	return nil
}

func (s *session) setAside(ctx context.Context, d flow.Dead) error {
	s.beat() // a run of them may be long
	if err := s.deps.DeadLetters.SetAside(ctx, d); err != nil {
		return fmt.Errorf("set aside record %d of message %d: %w", d.Index, d.Message.Seq, err)
	}
	s.metrics.dead.Inc()
	s.log.WarnContext(ctx, "set aside what cannot be stored", "seq", d.Message.Seq, "index", d.Index, "code", d.Code, "reason", d.Reason)
	return nil
}

// writeDown writes down who changed what. The changes themselves are applied by a
// loop of their own.
func (s *session) writeDown(ctx context.Context, changes []flow.Message) error {
	if len(changes) == 0 {
		return nil
	}
	if s.deps.Audits == nil {
		return halt("message %d is a change, and nothing here knows of changes", changes[0].Seq)
	}
	err := s.deps.Audits.WriteDown(ctx, changes)
	var refused *flow.StoreError
	if errors.As(err, &refused) && refused.Class == flow.ClassPoison {
		// It is the table: who changed what is plain text.
		return halt("ClickHouse refuses to write down changes: %w", err)
	}
	return err
}

// draining is a context that ends d after ctx has.
func draining(ctx context.Context, d time.Duration) (context.Context, func()) {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return inner, func() { stop(); cancel() }
}
