package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice/pkg/record"
)

// codeRefused marks dead letters that the warehouse, or the state store,
// refused for their content.
const codeRefused = "refused"

// rows stores the rows that the claim names, and then the rest of the block.
// As long as nothing is refused the claim is all of the block, and rows is one
// insert, or those of all pieces at once.
func (s *session) rows(ctx context.Context, b *block) error {
	if stored, err := s.allAtOnce(ctx, b); stored || err != nil {
		return err
	}
	all := b.columns.Rows()
	for {
		c := *s.position.Claim
		from, to := c.From, c.To
		if to == 0 {
			to = all
		}
		if to > all || from > 0 && from >= to || to > b.end(from) && all > 0 {
			return halt("the claim names the rows %d to %d of a block of %d: it is of another version, or damaged", from, to, all)
		}
		var refused *record.StoreError
		switch err := s.piece(ctx, b, c, from, to); {
		case errors.As(err, &refused) && refused.Class == record.ClassPoison:
			if err := s.narrow(ctx, b, from, to, refused); err != nil {
				return err
			}
			// Narrowed. A crash here goes on with the smaller piece. The
			// larger one left nothing behind: narrow has made sure.
		case err != nil && to-from > 1 && s.trials.tooHeavy(time.Now()):
			if err := s.shrink(ctx, b, from, to, err); err != nil {
				return err
			}
		case err != nil:
			return err
		case to == all:
			return nil
		default:
			// Piece stored, or set aside. A crash here repeats it under its
			// own token.
			if err := s.reclaim(ctx, b, to, b.after(from, to, s.bearable), ""); err != nil {
				return err
			}
		}
	}
}

// piece stores what the claim names, the rows from to to-1, or sets it aside.
func (s *session) piece(ctx context.Context, b *block, c record.Claim, from, to int) error {
	switch {
	case c.Dead != "":
		return s.setAsideRow(ctx, b, from, c.Dead)
	case from == to:
		return nil
	}
	start := time.Now()
	s.beat()
	known, err := s.isRemembered(ctx, c)
	if err == nil && known {
		err = s.insert(ctx, b, c)
	} else if err == nil {
		err = s.complete(ctx, b, c, from, to)
	}
	s.beat()
	if err != nil {
		return err
	}
	s.inserted(ctx, b, from, to, time.Since(start))
	return nil
}

// inserted counts the rows from to to-1, which are stored.
func (s *session) inserted(ctx context.Context, b *block, from, to int, took time.Duration) {
	s.refusals = 0
	s.recovered()
	s.metrics.inserted(ctx, took)
	s.metrics.rows.Add(float64(to - from))
	s.moved.Stored += uint64(to - from)
	s.lastRow = max(s.lastRow, slices.Max(b.columns.StreamSeq[from:to]))
}

// insert inserts what the claim names under its token. When that may have been
// done before it makes sure that it is there.
func (s *session) insert(ctx context.Context, b *block, c record.Claim) error {
	if err := s.try(ctx, b, c); err != nil {
		return fmt.Errorf("insert block %s: %w", c.Token, err)
	}
	if !s.repeated {
		return nil
	}
	// A ClickHouse server that is killed between remembering a token and
	// storing its rows drops the repeat, and says that all is well. It does so
	// for each month by itself.
	missing, _, err := s.months(ctx, b, c)
	if err == nil && len(missing) > 0 {
		err = halt("the table takes block %s for stored, but has none of its rows of %v: make it forget its tokens (docs/reliability.md says how)", c.Token, missing)
	}
	return err
}

func (s *session) named(b *block, c record.Claim) record.Block {
	return record.Block{Lane: s.number, Claim: c, Columns: &b.columns}
}

// narrow claims half of the rows from to to-1, which were refused; or, when
// it is one, claims to set it aside. It refuses to when the table has taken
// rows of them: to insert those under another token would store them twice.
func (s *session) narrow(ctx context.Context, b *block, from, to int, refused *record.StoreError) error {
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

// setAsideRow sets aside one row of the block, as it was posted. Blocks do not
// keep their messages, so it is read again.
func (s *session) setAsideRow(ctx context.Context, b *block, row int, reason string) error {
	seq, index := b.columns.StreamSeq[row], int(b.columns.StreamIdx[row])
	reader, err := s.parts.Source.Open(ctx, s.number, seq)
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
	m, raw, err := e.Record(index)
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
