package ingest

import (
	"context"
	"fmt"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// renewAfter is how long after its stored_at, by ClickHouse's clock, an open claim gets
// another one.
const renewAfter = time.Hour

// renewed is a claim as it is to be inserted: one that is older than an hour gets another
// stored_at, so that however long ClickHouse or the ingester was away, rows are kept for
// their whole retention. What an earlier insert has brought, or will bring yet, carries the
// one before: tokens do not cover it. When all rows that are open are visible, they were
// inserted, and the claim stays.
//
// It is not known which stored day the views have received a row with, so the days are
// named for a recount.
func (s *session) renewed(ctx context.Context, b *block, c flow.Claim) (flow.Claim, error) {
	clock, err := s.deps.Tables.Clock(ctx)
	if err != nil || clock.Sub(time.UnixMilli(c.StoredAt)) <= renewAfter {
		return c, err
	}
	open, visible, stored := 0, 0, b.left(flow.Run{To: c.Settled})-c.DeadLettered
	for i, p := range c.Pieces {
		switch p.State {
		case flow.PieceOpen:
			n, err := s.visible(ctx, b, c.Uncut(i))
			if err != nil {
				return c, err
			}
			open, visible = open+b.left(c.Uncut(i)), visible+n
		case flow.PieceStored:
			stored += b.left(c.Piece(i))
		}
	}
	if open == visible {
		return c, nil
	}
	next := c.Renewed(clock.UnixMilli(), uint64(stored))
	for i, p := range next.Pieces {
		if p.State == flow.PieceOpen {
			s.doubt(b, next, next.Uncut(i))
		}
	}
	s.log.WarnContext(ctx, "an open claim is older than an hour: its rows are stored from now on", "claim", c, "stored_at", time.UnixMilli(c.StoredAt).UTC(), "now", clock.UTC())
	s.next.Claim = &next
	if err := s.swap(ctx, s.next); err != nil {
		return c, err
	}
	// Renewed. A crash here leaves a claim that is less than an hour old.
	s.repeated = true
	return next, nil
}

// earlier is how many of n visible rows of a run carry a stored_at before the one of the
// claim.
func (s *session) earlier(ctx context.Context, b *block, c flow.Claim, r flow.Run, n int) (uint64, error) {
	if c.RenewedAt == 0 {
		return 0, nil
	}
	rows := s.rowsOf(b, r)
	rows.StoredAt = c.StoredAt
	now, _, err := s.deps.Tables.Visible(ctx, rows, time.Time{})
	if err != nil {
		return 0, fmt.Errorf("look when rows %d to %d of claim %s were stored: %w", r.From, r.To, c, err)
	}
	return uint64(n) - now, nil
}

// expired is what came of an insert whose token is known and of which no row is visible,
// if its rows may have expired since they were stored. Without them the token says that
// they were stored; on any other day they are missing.
func (s *session) expired(ctx context.Context, b *block, c flow.Claim, r flow.Run) (flow.Outcome, error) {
	if expired, err := s.mayHaveExpired(ctx, c); err != nil || !expired {
		return flow.Outcome{Result: flow.ResultMissing}, err
	}
	s.log.WarnContext(ctx, "rows of an open claim have expired", "claim", c, "from", r.From, "to", r.To)
	o := s.stored(b, flow.ResultInserted, r)
	if c.RenewedAt > 0 {
		o.Earlier = uint64(b.left(r))
	}
	return o, nil
}

// mayHaveExpired tells whether rows of a claim may have expired since they were stored.
func (s *session) mayHaveExpired(ctx context.Context, c flow.Claim) (bool, error) {
	first := c.StoredAt
	if c.RenewedAt > 0 {
		first = c.RenewedAt
	}
	line, err := s.expiryLine(ctx)
	return flow.UTCDay(first) <= line, err
}

// expiryLine is the last stored day of which rows may have expired; empty when none have.
func (l *lane) expiryLine(ctx context.Context) (string, error) {
	if l.deps.Expiry == nil {
		return "", nil
	}
	line, err := l.deps.Expiry.Line(ctx)
	if err != nil {
		return "", fmt.Errorf("look which rows may have expired: %w", err)
	}
	return line, nil
}

// safeParts is how many parts may have been inserted after a claim for its tokens
// still to be taken as remembered: half of the least window of tokens that the
// warehouse takes for enough. The other half is for inserts while this is asked,
// and for a process that was paused between asking and inserting.
const safeParts = 50_000

// rememberedFor is how long an answer about the age of tokens is good.
const rememberedFor = time.Minute

// isRemembered says whether the tables still know the tokens of the claim, in case
// they were inserted.
func (s *session) isRemembered(ctx context.Context, b *block, c flow.Claim) (bool, error) {
	now := s.cfg.Now()
	_, parts, err := s.deps.Tables.Visible(ctx, record.Block{Columns: &b.columns}, time.UnixMilli(c.ClaimedAt))
	if err != nil {
		return false, fmt.Errorf("look how old claim %s is: %w", c, err)
	}
	if parts > safeParts {
		return false, nil
	}
	s.remembered = now
	return true, nil
}

// isFresh tells whether the claim was made, or its tokens were known to be remembered, a
// moment ago.
func (s *session) isFresh() bool {
	// By both clocks: one of them stands still while the machine sleeps.
	now := s.cfg.Now()
	age, wall := now.Sub(s.remembered), now.UnixMilli()-s.remembered.UnixMilli()
	return age < rememberedFor && 0 <= wall && wall < rememberedFor.Milliseconds()
}
