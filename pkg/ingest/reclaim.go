package ingest

import (
	"context"
	"errors"
	"fmt"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// reclaim checks that the block is the claimed one, and drops the claim's dropped rows.
func (s *session) reclaim(ctx context.Context, b *block, c flow.Claim) error {
	if c.Messages != b.messages() {
		return halt("messages %s differ from the claimed ones: their hash is %s, the claim has %s", c, b.messages(), c.Messages)
	}
	if c.Counted != b.counted() {
		return s.recount(ctx, b, c)
	}
	if sum := sum(c); !c.Recounted && c.Hash != sum {
		return halt("the lane state is corrupt: the hash of claim %s is %s, and it has %s", c, sum, c.Hash)
	}
	known, err := flow.ParseRuns(c.Dropped)
	if err != nil {
		return halt("the lane state is corrupt: claim %s: %w", c, err)
	}
	forgotten, err := flow.ParseRuns(c.Forgotten)
	if err != nil {
		return halt("the lane state is corrupt: claim %s: %w", c, err)
	}
	rows, last := b.columns.Rows(), c.Settled
	for of, numbers := range map[int][]flow.Run{rows: known, rows + len(b.dead): forgotten} {
		if n := len(numbers); n > 0 && numbers[n-1].To > of {
			return halt("the lane state is corrupt: claim %s drops row %d of a block of %d", c, numbers[n-1].To-1, of)
		}
	}
	for _, p := range c.Pieces {
		if p.To <= last || p.To > rows {
			return halt("the lane state is corrupt: claim %s has a piece of rows %d to %d of a block of %d", c, last, p.To, rows)
		}
		last = p.To
	}
	// Adds its requests to the window. The claim has the repeated ones.
	if _, err := s.repeatedRequests(ctx, b); err != nil {
		return err
	}
	s.requests.Decided(b.first, b.end)
	b.number()
	b.drop(known, forgotten)
	if len(c.Pieces) > 0 && last != rows || b.columns.Rows() > 0 && last == 0 {
		return halt("the lane state is corrupt: claim %s ends at row %d of a block of %d", c, last, rows)
	}
	s.repeated = true
	return s.settledStay(ctx, b, c)
}

// settledStay checks that the stored rows of a claim exist. A warehouse that was set back, or rebuilt up to the
// checkpoint, lacks them, and nothing would insert them. After a reset the messages are decided again, and existing
// rows are recognised.
func (s *session) settledStay(ctx context.Context, b *block, c flow.Claim) error {
	runs, want, there := []flow.Run{{To: c.Settled}}, -c.DeadLettered, 0
	for i, p := range c.Pieces {
		if p.State == flow.PieceStored {
			runs = append(runs, c.Piece(i))
		}
	}
	for _, run := range runs {
		want += b.left(run)
	}
	if want == 0 {
		return nil
	}
	for _, run := range runs {
		n, err := s.visible(ctx, b, run)
		if err != nil {
			return err
		}
		there += n
	}
	if there >= want {
		return nil
	}
	if expired, err := s.mayHaveExpired(ctx, c); err != nil || expired {
		return err
	}
	return halt("%d of the %d stored rows of claim %s are missing: ClickHouse was set back; run sluice lanes reset --lane %d --last %d, then sluice verify", want-there, want, c, s.number, s.state.Done)
}

// errOtherVersion is the remedy for a claim that only the version that wrote it can complete.
var errOtherVersion = errors.New("run the version that wrote it until the lane has no claim, then this one")

// recount decides again a claim whose rows this version numbers differently: it decodes a record that the other version
// dead-lettered, or assigns another month. That is possible while no row of the claim is stored. An insert of the other
// version may still arrive, so each token starts a piece where it did, and exactly one of the two inserts is stored. If
// it is the other one, its rows differ from the piece's, and the lane halts. All rows must be of one month: ClickHouse
// deduplicates within a month, and the claim does not record a piece's.
func (s *session) recount(ctx context.Context, b *block, c flow.Claim) error {
	cannot := func(why string, args ...any) error {
		return halt("claim %s was written by a version that numbers its rows differently, and %s: %w", c, fmt.Sprintf(why, args...), errOtherVersion)
	}
	if c.Settled > 0 || c.Cut != nil {
		return cannot("some of its pieces are settled or cut")
	}
	for _, p := range c.Pieces {
		if p.State != flow.PieceOpen && p.State != flow.PieceWaiting {
			return cannot("some of its pieces are %s", p.State)
		}
	}
	if len(c.Pieces) > 0 && len(b.months) > 1 {
		return cannot("they are of several months")
	}
	visible, err := s.count(ctx, record.Block{Columns: &b.columns, To: b.columns.Rows()})
	if err != nil {
		return fmt.Errorf("count rows of claim %s: %w", c, err)
	}
	_, last, err := s.deps.Index.Last(ctx, s.number, s.state.IncarnationOf(c.First))
	if err != nil {
		return fmt.Errorf("count rows of claim %s: %w", c, err)
	}
	if visible > 0 || last >= c.First {
		return cannot("some of them are stored")
	}
	places, err := s.decide(ctx, b)
	if err != nil {
		return err
	}
	next, decided := c, b.decided(places)
	next.Counted, next.Dropped, next.Forgotten, next.Recounted = decided.Counted, decided.Dropped, decided.Forgotten, true
	if next.Pieces = b.recut(c); next.Pieces == nil && len(c.Pieces) > 0 {
		return cannot("there are no rows for one of its tokens")
	}
	if next.Pieces == nil && b.columns.Rows() > 0 {
		next.Pieces = []flow.Piece{{To: b.rows(), State: flow.PieceWaiting}}
	}
	s.log.WarnContext(ctx, "deciding a claim again: the version that wrote it numbers its rows differently", "claim", c)
	s.repeated = true
	s.next.Claim = &next
	// Recounted. A crash here leaves a claim of this version, or of the other one.
	return s.swap(ctx, s.next)
}

// recut makes one piece per piece of the claim, with the same start and so the same token; nil if one of them has no
// rows.
func (b *block) recut(c flow.Claim) (pieces []flow.Piece) {
	for i := range c.Pieces {
		run := flow.Run{From: c.Piece(i).From, To: b.rows()}
		if i+1 < len(c.Pieces) {
			run.To = min(c.Pieces[i].To, run.To)
		}
		if run.From >= run.To || b.left(run) == 0 {
			return nil
		}
		pieces = append(pieces, flow.Piece{To: run.To, State: flow.PieceOpen})
	}
	return pieces
}
