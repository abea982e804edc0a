package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/pkg/record"
)

// codeRefused marks dead letters that the warehouse, or the state store,
// refused for their content.
const codeRefused = "refused"

// rows stores the rows that the claim names, and then the rest of the block.
// As long as nothing is refused the claim is all of the block, and rows is one
// insert.
func (s *session) rows(ctx context.Context, b *block) error {
	all := b.columns.Rows()
	for {
		c := *s.position.Claim
		from, to := c.From, c.To
		if to == 0 {
			to = all
		}
		if to > all {
			return halt("the claim names row %d of a block of %d", to, all)
		}
		var refused *record.StoreError
		switch err := s.piece(ctx, b, c); {
		case errors.As(err, &refused) && refused.Class == record.ClassPoison:
			if err := s.narrow(ctx, b, from, to, refused); err != nil {
				return err
			}
			// Narrowed. A crash here goes on with the smaller piece. The
			// larger one left nothing behind: narrow has made sure.
		case err != nil:
			return err
		case to == all:
			return nil
		default:
			// Piece stored, or set aside. A crash here repeats it under its
			// own token. The next one may be twice as large again.
			if err := s.reclaim(ctx, to, min(all, to+2*(to-from)), ""); err != nil {
				return err
			}
		}
	}
}

// piece stores what the claim names, or sets it aside.
func (s *session) piece(ctx context.Context, b *block, c record.Claim) error {
	if c.Dead != "" {
		return s.setAsideRow(ctx, b, c.From, c.Dead)
	}
	n := b.columns.Rows() - c.From
	if c.To != 0 {
		n = c.To - c.From
	}
	if n == 0 {
		return nil
	}
	start := time.Now()
	s.beat()
	err := s.parts.Warehouse.Insert(ctx, record.Block{Lane: s.number, Claim: c, Columns: &b.columns})
	s.beat()
	if err != nil {
		return fmt.Errorf("insert block %s: %w", c.Token, err)
	}
	if s.repeated {
		if err := s.confirm(ctx, b, c); err != nil {
			return err
		}
	}
	s.metrics.insertSeconds.Observe(time.Since(start).Seconds())
	s.metrics.rows.Add(float64(n))
	s.lastRow = b.columns.StreamSeq[c.From+n-1]
	return nil
}

// confirm looks for the rows of a piece that may have been inserted before. A
// ClickHouse server that is killed between remembering a token and storing its
// rows drops the repeat, and says that all is well: a table that knows the
// token and has none of the rows is not passed over.
func (s *session) confirm(ctx context.Context, b *block, c record.Claim) error {
	n, err := s.parts.Warehouse.Stored(ctx, record.Block{Lane: s.number, Claim: c, Columns: &b.columns})
	if err != nil {
		return fmt.Errorf("look for the rows of repeated block %s: %w", c.Token, err)
	}
	if n == 0 {
		return halt("the table takes block %s for stored, but has none of its rows: make it forget its tokens (docs/reliability.md says how)", c.Token)
	}
	return nil
}

// narrow claims half of the rows from to to-1, which were refused; or, when
// it is one, claims to set it aside. It refuses to when the table has taken
// rows of them: to insert those under another token would store them twice.
func (s *session) narrow(ctx context.Context, b *block, from, to int, refused *record.StoreError) error {
	n, err := s.parts.Warehouse.Stored(ctx, record.Block{Lane: s.number, Claim: *s.position.Claim, Columns: &b.columns})
	if err != nil {
		return fmt.Errorf("look for the rows of refused block %s: %w", s.position.Claim.Token, err)
	}
	if n > 0 {
		return &haltError{fmt.Errorf("the table has taken %d rows of block %s, but a materialized view refuses it: mend or drop the view: %w",
			n, s.position.Claim.Token, refused)}
	}
	if to-from == 1 {
		return s.reclaim(ctx, from, to, refused.Error())
	}
	if s.position.Claim.To == 0 {
		s.log.Warn("dividing a block that is refused", "rows", to-from, "token", s.position.Claim.Token, "error", refused)
	}
	return s.reclaim(ctx, from, from+(to-from)/2, "")
}

// reclaim claims other rows of the same block.
func (s *session) reclaim(ctx context.Context, from, to int, dead string) error {
	c := *s.position.Claim
	c.From, c.To, c.Dead = from, to, dead
	c.Token = pieceToken(wholeToken(c.Token), from, to)
	next := s.position
	next.Claim = &c
	return s.swap(ctx, next)
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
	m, err := reader.Next(ctx)
	if err != nil {
		return fmt.Errorf("read message %d again: %w", seq, err)
	}
	if m.Seq != seq || reader.Identity() != s.stream {
		return halt("message %d is not there any more", seq)
	}
	raw, err := record.Raw(&m, index)
	if err != nil {
		return halt("record %d of message %d can not be found again", index, seq)
	}
	return s.setAside(ctx, dead(m, index, raw, codeRefused, reason))
}
