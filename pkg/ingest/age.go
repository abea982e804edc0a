package ingest

import (
	"context"
	"fmt"
	"time"

	"sluice/pkg/flow"
)

// renewAfter is the age of an open claim, by ClickHouse's clock, after which it is renewed.
const renewAfter = time.Hour

// renewed returns the claim to insert. One older than an hour gets a new stored_at, so that an outage does not shorten
// the retention of its rows. Rows of an earlier insert keep the old stored_at, which tokens do not cover. If all open
// rows are visible the claim stays.
//
// Views may have received a row under either stored day, so the days are listed for a recount.
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
	s.log.WarnContext(ctx, "renewing an open claim older than an hour: its retention starts now", "claim", c, "stored_at", time.UnixMilli(c.StoredAt).UTC(), "now", clock.UTC())
	s.next.Claim = &next
	if err := s.swap(ctx, s.next); err != nil {
		return c, err
	}
	// Renewed. A crash here leaves a claim that is less than an hour old.
	s.repeated = true
	return next, nil
}

// earlier counts those of the n visible rows of a run that have an older stored_at than the claim.
func (s *session) earlier(ctx context.Context, b *block, c flow.Claim, r flow.Run, n int) (uint64, error) {
	if c.RenewedAt == 0 {
		return 0, nil
	}
	rows := s.rowsOf(b, r)
	rows.StoredAt = c.StoredAt
	now, err := s.count(ctx, rows)
	if err != nil {
		return 0, fmt.Errorf("count rows %d to %d of claim %s with an earlier stored_at: %w", r.From, r.To, c, err)
	}
	return uint64(n - now), nil
}

// expired is the outcome of an insert that was deduplicated although none of its rows is visible: they have expired, or
// they are missing.
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

// mayHaveExpired reports whether rows of a claim may have expired since they were stored.
func (s *session) mayHaveExpired(ctx context.Context, c flow.Claim) (bool, error) {
	first := c.StoredAt
	if c.RenewedAt > 0 {
		first = c.RenewedAt
	}
	line, err := s.expiryLine(ctx)
	return flow.UTCDay(first) <= line, err
}

// expiryLine is the last stored day whose rows may have expired; empty if none.
func (l *lane) expiryLine(ctx context.Context) (string, error) {
	if l.deps.Expiry == nil {
		return "", nil
	}
	line, err := l.deps.Expiry.Line(ctx)
	if err != nil {
		return "", fmt.Errorf("read the expiry line: %w", err)
	}
	return line, nil
}

// safeParts is the number of parts inserted since a claim up to which its tokens count as remembered:
// half of the smallest deduplication window that Check accepts. The other half covers inserts during
// the query, and a process paused between query and insert.
const safeParts = 50_000

// rememberedFor is how long the answer of isRemembered is valid.
const rememberedFor = time.Minute

// isRemembered reports whether the tables still remember the claim's tokens, if they were inserted.
func (s *session) isRemembered(ctx context.Context, c flow.Claim) (bool, error) {
	now := s.cfg.Now()
	parts, err := s.deps.Tables.PartsSince(ctx, time.UnixMilli(c.ClaimedAt))
	if err != nil {
		return false, fmt.Errorf("read the age of claim %s: %w", c, err)
	}
	if parts > safeParts {
		return false, nil
	}
	s.remembered = now
	return true, nil
}

// isFresh reports whether the claim was made, or isRemembered returned true, within rememberedFor.
func (s *session) isFresh() bool {
	// By both clocks: the monotonic one may stop while the machine sleeps.
	now := s.cfg.Now()
	age, wall := now.Sub(s.remembered), now.UnixMilli()-s.remembered.UnixMilli()
	return age < rememberedFor && 0 <= wall && wall < rememberedFor.Milliseconds()
}
