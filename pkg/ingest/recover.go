package ingest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// codeRefused marks dead letters that the warehouse, or the state store,
// refused for their content.
const codeRefused = "refused"

// narrow claims half of the rows from to to-1, which were refused; or, when
// it is one, claims to set it aside. It refuses to when the table has taken
// rows of them: to insert those under another token would store them twice.
func (s *session) narrow(ctx context.Context, b *block, from, to int, refused *flow.StoreError) error {
	_, there, err := s.months(ctx, b, *s.position.Claim)
	if err != nil {
		return err
	}
	if len(there) > 0 {
		return &haltError{fmt.Errorf("the table has taken the rows of %v of block %s, but a materialized view refuses it: mend or drop the view: %w",
			there, s.position.Claim.Token, refused)}
	}
	if to-from == 1 {
		if n := max(s.position.Claim.Refused, s.refusals); n >= s.cfg.Refusals {
			return &haltError{fmt.Errorf("ClickHouse has refused %d rows of one block or in a row, so it is not the rows: mend what refuses them, such as a constraint or a materialized view; those that were set aside can be replayed then: %w", n+1, refused)}
		}
		s.refusals++
		return s.reclaim(ctx, b, from, to, refused.Error())
	}
	if s.position.Claim.To == 0 || b.mayBeThere(from, to) {
		s.log.WarnContext(ctx, "dividing a block that is refused", "rows", to-from, "token", s.position.Claim.Token, "error", refused)
	}
	return s.reclaim(ctx, b, from, from+(to-from)/2, "")
}

// setAsideRow sets aside one row of the block, as it was posted. Blocks do not
// keep their messages, so it is read again.
func (s *session) setAsideRow(ctx context.Context, b *block, row int, reason string) error {
	seq, index := b.columns.StreamSeq[row], int(b.columns.StreamIdx[row])
	reader, err := s.deps.Lanes.Open(ctx, s.number, seq)
	if err != nil {
		return fmt.Errorf("open the lane at message %d: %w", seq, err)
	}
	defer reader.Close()
	e, err := reader.Next(ctx)
	if err != nil {
		return fmt.Errorf("read message %d again: %w", seq, err)
	}
	if e.Seq != seq || reader.Identity() != s.stream {
		return halt("message %d is not there any more", seq)
	}
	m, raw, err := record.Find(&e, index)
	m.Incarnation = s.life.incarnation
	if err != nil {
		return halt("record %d of message %d cannot be found again", index, seq)
	}
	if err := s.setAside(ctx, dead(m, index, raw, codeRefused, reason)); err != nil {
		return err
	}
	s.moved.Dead++
	return nil
}

// togetherAgain is how long blocks are inserted one piece after the other when
// several at once have failed: they may have been too much at once.
const togetherAgain = time.Minute

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

// tooHeavy says that fewer rows should be claimed. While another insert of the
// same rows may still be running, which would store them later, they may not.
func (t trials) tooHeavy(now time.Time) bool { return t.heavy >= heavyTries && now.After(t.loose) }

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

// reclaim claims other rows of the same block.
func (s *session) reclaim(ctx context.Context, b *block, from, to int, dead string) error {
	next := s.progress()
	c := *next.Claim
	c.From, c.To, c.Dead = from, to, dead
	if b.together == 1 { // else all that was inserted at once is as old as the first claim
		c.At = time.Now().UnixMilli()
	}
	if dead != "" {
		c.Refused++
	}
	c.Token = pieceToken(wholeToken(c.Token), from, to)
	next.Claim = &c
	if err := s.swap(ctx, next); err != nil {
		return err
	}
	if dead == "" && b.mayBeThere(from, to) {
		s.repeated, s.remembered = true, time.Time{}
		s.trials = s.sent.trialsOf(c.Token)
	}
	return nil
}

// complete stores what the claim names by looking instead of by its token,
// which the tables may have forgotten: months that are missing are inserted,
// months that are there are not. What the materialized views have heard of it
// is not known: folds, which may hear a thing twice, are told again, and the
// days are named for the counters to be counted again.
//
// A crash in between repeats it, and finds the months that were inserted. The
// token goes with the insert all the same: an owner that stood still may be at
// the same insert.
func (s *session) complete(ctx context.Context, b *block, c flow.Claim, from, to int) error {
	missing, there, err := s.months(ctx, b, c)
	if err != nil {
		return err
	}
	s.log.WarnContext(ctx, "completing a claim by looking: its token may be forgotten", "token", c.Token, "missing", missing, "there", there)
	s.repeated = true
	if len(there) == 0 {
		err = s.insert(ctx, b, c)
	} else if len(missing) > 0 {
		part := c
		part.From, part.To = from, from+b.gather(from, to, missing)
		err = s.insert(ctx, b, part)
	}
	if err != nil {
		return err
	}
	if err := s.deps.Warehouse.Refold(ctx, s.named(b, c)); err != nil {
		return fmt.Errorf("tell the folds about block %s again: %w", c.Token, err)
	}
	s.doubt(b, from, to)
	return nil
}

// doubt names the days of the rows from to to-1 for a recount.
func (s *session) doubt(b *block, from, to int) {
	days := map[int64]bool{}
	for _, ms := range b.columns.TS[from:to] {
		days[flow.Day(ms)] = true
	}
	for _, day := range slices.Sorted(maps.Keys(days)) {
		s.doubted = append(s.doubted, time.Unix(day*24*60*60, 0).UTC().Format(time.DateOnly))
	}
}
