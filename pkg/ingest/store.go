package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/ingest/dedup"
	"sluice/pkg/record"
)

// Pauses of a store that has nothing to do.
const (
	advanceAfter = 100 * time.Millisecond // record the last block as done, without a next one
	idleTick     = time.Second            // say that all is well
)

// store stores one block after the other.
func (s *session) store(ctx context.Context, blocks <-chan *block, free chan<- *block) error {
	for {
		var idle <-chan time.Time
		if s.isPending() {
			idle = time.After(advanceAfter)
		}
		select {
		case b := <-blocks:
			if b == nil { // nothing has come for a while
				if s.state.Claim == nil {
					s.recovered()
				}
				s.beat()
				continue
			}
			if err := s.traced(ctx, b, s.block); err != nil {
				return err
			}
			free <- b
		case <-idle:
			if err := s.advance(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			// Without this the block would be inserted again at the next
			// start, and dropped for its tokens: slower, and as right.
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
	// to the same tokens.
	for _, d := range b.dead {
		if err := s.setAside(ctx, d); err != nil {
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

// claim fixes the block in the lane state, what is dropped of it included, and
// with the same write records the block before it as done. A block that is
// claimed already must be the same: what is dropped is in the claim, and is
// not decided again.
func (s *session) claim(ctx context.Context, b *block) error {
	if s.state.Claim != nil && !s.isPending() {
		return s.reclaim(ctx, b, *s.state.Claim)
	}
	if s.state.Held(s.cfg.Now()) {
		// The block is read again when the lane resumes.
		return errors.Join(s.advance(ctx), errHeld)
	}
	if err := s.checkMoves(ctx, b); err != nil {
		return err
	}
	places, err := s.decide(ctx, b)
	if err != nil {
		return err
	}
	// Decided. A crash here leaves nothing: it is decided anew, about other
	// blocks perhaps.
	if _, err := s.marks(ctx, s.next, nil); err != nil {
		return err
	}
	clock, err := s.deps.Tables.Clock(ctx)
	if err != nil {
		return err
	}
	counted := b.counted()
	numbers := b.number(places, b.skipped)
	known, forgotten := numbers[0], b.forgotten(numbers[1])
	c := flow.Claim{
		First: b.first, Last: b.end.Seq, Stamp: b.end.Stamp, Messages: b.messages(), Counted: counted,
		Dropped: flow.FormatRuns(known), Forgotten: flow.FormatRuns(forgotten), Void: flow.FormatRuns(b.voids),
		ClaimedAt: clock.UnixMilli(), StoredAt: max(clock.UnixMilli(), b.end.Stamp/int64(time.Millisecond)),
	}
	c.Hash = sum(c)
	b.drop(known, forgotten)
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

// checkMoves compares the move markers that a block has, and those by which requests
// of it are void, with the lists of lanes they were written for. A list of an earlier
// revision was set back: its apis have answered OK for requests that are void.
func (s *session) checkMoves(ctx context.Context, b *block) error {
	for _, move := range b.moves {
		switch revision, err := s.deps.Lanes.Revision(ctx, move.Source); {
		case err != nil:
			return fmt.Errorf("compare the move marker at message %d with the lanes of source %q: %w", move.Seq, move.Source, err)
		case revision < move.Revision:
			return halt("the lanes of source %q have revision %d, but message %d is a move marker of revision %d: the bucket of sources was set back; restore it (docs/runbooks/lanes.md says how)", move.Source, revision, move.Seq, move.Revision)
		}
	}
	return nil
}

// inserts is how many inserts a new block is made of: several when more is
// waiting, so that the lane goes as fast as several inserts do, and one while it
// keeps up, so that there are few parts to merge.
func (s *session) inserts(b *block) int {
	if !b.full || time.Now().Before(s.strain.single) {
		return 1
	}
	return max(1, min(s.cfg.Together, b.columns.Bytes()/s.cfg.PieceBytes))
}

// decide says which rows of a block are deduplicated, by their place: records that
// are known, and those without an identity of their own whose request is. Rows of
// forgotten instances are not among them.
func (s *session) decide(ctx context.Context, b *block) ([]flow.Run, error) {
	known, err := s.records.Decide(ctx, &b.columns, s.next.Base(), s.share(s.cfg.KnownBytes), s)
	if err != nil {
		return nil, err
	}
	again, err := s.repeatedRequests(ctx, b)
	return without(dedup.Merge(known, again), b.skipped), err
}

// without returns the rows of runs that are not in others.
func without(runs, others []flow.Run) (rest []flow.Run) {
	if len(others) == 0 {
		return runs
	}
	for _, r := range runs {
		for row := r.From; row < r.To; row++ {
			for len(others) > 0 && others[0].To <= row {
				others = others[1:]
			}
			if len(others) == 0 || row < others[0].From {
				rest = flow.AddRow(rest, row)
			}
		}
	}
	return rest
}

// Marks asks how far days reach; see dedup.Tables.
func (s *session) Marks(ctx context.Context, days []flow.SourceDay) (flow.Marks, error) {
	return s.marks(ctx, s.next, days)
}

// Known asks which rows may be stored already; see dedup.Tables.
func (s *session) Known(ctx context.Context, c *record.Columns, rows []int, found func(*flow.Identity)) error {
	s.metrics.lookups.Inc()
	s.metrics.lookedUp.Add(float64(len(rows)))
	return s.deps.Index.Known(ctx, c, rows, found)
}

// repeatedRequests returns the rows of requests that came before, by their place,
// and makes the requests of the block known.
func (s *session) repeatedRequests(ctx context.Context, b *block) ([]flow.Run, error) {
	batch := dedup.Batch{First: b.first, Last: b.end, Requests: b.requests, Columns: &b.columns, Moves: s.next.Moves}
	runs, err := s.requests.Repeated(ctx, batch, s.share(s.cfg.RepeatBytes), func(ctx context.Context, from, to uint64, f func(*flow.Entry) error) error {
		s.metrics.reread.Inc()
		return s.heads(ctx, from, to, f)
	})
	if err != nil {
		return nil, err
	}
	s.metrics.window.Set(s.requests.Reach().Seconds())
	return runs, nil
}

// heads reads what the headers of messages of the lane say.
func (l *lane) heads(ctx context.Context, from, to uint64, f func(*flow.Entry) error) error {
	return l.deps.Lanes.Heads(ctx, l.number, from, to, f)
}

// complete counts a block as done. The next write of the lane state records that.
func (s *session) complete(b *block, c flow.Claim) error {
	became := b.totals
	became.Stored = uint64(b.columns.Rows() - c.DeadLettered)
	became.DeadLettered += uint64(c.DeadLettered)
	next, err := s.next.Apply(c, became, c.LastRow)
	if err != nil {
		return &haltError{err}
	}
	// What the claim after this one decides is in that claim.
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

// isPending tells whether a block is stored and not yet recorded as done.
func (s *session) isPending() bool { return s.next.Done != s.state.Done }

// advance records the block that is stored as done.
func (s *session) advance(ctx context.Context) error {
	if !s.isPending() {
		return nil
	}
	return s.swap(ctx, s.next)
}

// swap writes the lane state. After an error it is not known which one is there:
// the session ends, and the next one reads it.
func (s *session) swap(ctx context.Context, next flow.LaneState) error {
	next, err := s.deps.States.CompareAndSwap(ctx, s.number, next)
	if err != nil {
		return fmt.Errorf("write the lane state: %w", err)
	}
	s.state, s.next = next, next
	s.metrics.checkpoint.Set(float64(next.Done))
	return nil
}

func (s *session) setAside(ctx context.Context, d flow.Dead) error {
	s.beat() // a run of them may be long
	if err := s.deps.DeadLetters.SetAside(ctx, d); err != nil {
		return fmt.Errorf("dead-letter record %d of message %d: %w", d.Index, d.Message.Seq, err)
	}
	s.metrics.dead.Inc()
	s.log.WarnContext(ctx, "dead-lettered what cannot be stored", "seq", d.Message.Seq, "index", d.Index, "code", d.Code, "reason", d.Reason)
	return nil
}

// writeDown writes the audit of changes. The changes themselves are applied by a
// loop of their own.
func (s *session) writeDown(ctx context.Context, changes []flow.Message) error {
	if len(changes) == 0 {
		return nil
	}
	if s.deps.Audits == nil {
		return halt("message %d is a change, and this ingester applies none", changes[0].Seq)
	}
	err := s.deps.Audits.WriteDown(ctx, changes)
	var rejected *flow.StoreError
	if errors.As(err, &rejected) && rejected.Class == flow.ClassPoison {
		// It is the table: an audit is plain text.
		return halt("ClickHouse rejects the audit of changes: %w", err)
	}
	return err
}

// draining is a context that ends d after ctx has.
func draining(ctx context.Context, d time.Duration) (context.Context, func()) {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return inner, func() { stop(); cancel() }
}
