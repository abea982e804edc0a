package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// rowsOf is the rows of the block with a run of numbers.
func (s *session) rowsOf(b *block, r flow.Run) record.Block {
	return record.Block{Columns: &b.columns, From: b.at(r.From), To: b.at(r.To)}
}

// judge returns the outcome of the insert of piece i. Its error is to be retried.
func (s *session) judge(ctx context.Context, b *block, c flow.Claim, i int, err error) (flow.Outcome, error) {
	first := i == c.FirstOpen()
	if err == nil {
		if !s.repeated && (c.Cut == nil || !first) {
			return s.stored(b, flow.ResultInserted, c.Piece(i)), nil
		}
		return s.counted(ctx, b, c, i)
	}
	s.repeated = true // the outcome is unknown, whatever the class
	var rejected *flow.StoreError
	if !errors.As(err, &rejected) {
		return flow.Outcome{}, err
	}
	s.strain.unanswered = s.strain.unanswered || rejected.Code == 0
	if rejected.Class == flow.ClassPoison && !first {
		return flow.Outcome{}, nil // handled once the pieces before it are settled
	}
	if rejected.Class != flow.ClassPoison {
		if first {
			s.strain.note(rejected)
		}
		if !first || !s.strain.isTooHeavy() || b.half(c.Piece(i)) == 0 {
			return flow.Outcome{}, err
		}
	}
	// It may be cut only while none of its rows is visible.
	uncut := c.Uncut(i)
	visible, lookErr := s.visible(ctx, b, uncut)
	switch {
	case lookErr != nil:
		return flow.Outcome{}, lookErr
	case visible > 0 && c.Cut != nil:
		return s.landed(ctx, b, c)
	case visible > 0 && rejected.InView:
		return flow.Outcome{}, &haltError{fmt.Errorf("block %s: %d rows of %d are stored, but a materialized view failed: fix or drop the view: %w", c, visible, b.left(uncut), err)}
	case visible > 0 && rejected.Class == flow.ClassPoison:
		return s.byLooking(ctx, b, c, i) // a constraint is newer than rows that an earlier attempt stored
	case visible > 0:
		return flow.Outcome{}, fmt.Errorf("the table has %d of its %d rows: %w", visible, b.left(uncut), err)
	}
	o := flow.Outcome{Result: flow.ResultRejected, Cut: b.half(c.Piece(i)), Reason: rejected.Error()}
	switch {
	case rejected.Class != flow.ClassPoison:
		o.Result = flow.ResultTooLarge
		s.strain.rows, s.strain.heavy = b.left(flow.Run{From: c.Piece(i).From, To: o.Cut}), 0
		s.log.WarnContext(ctx, "inserting fewer rows: ClickHouse exceeded a memory or time limit", "rows", b.left(c.Piece(i)), "next", s.strain.rows, "error", err)
	case o.Cut == 0:
		if n := max(s.deadRows(b, c), s.strain.rejected); n >= s.cfg.Rejections {
			return flow.Outcome{}, &haltError{fmt.Errorf("ClickHouse has rejected %d rows of one block or in a row: check constraints and materialized views; dead letters can be replayed then: %w", n+1, err)}
		}
		s.strain.rejected++
	case c.Cut == nil:
		s.log.WarnContext(ctx, "cutting a rejected piece", "rows", b.left(uncut), "claim", c, "error", err)
	}
	return o, nil
}

// visible counts the rows of a run of numbers in the table.
func (s *session) visible(ctx context.Context, b *block, r flow.Run) (int, error) {
	return s.count(ctx, s.rowsOf(b, r))
}

// count counts rows of a block in the table. All replicas must agree: a lagging one lacks an unconfirmed insert, and
// rows of a single replica may be lost with it.
func (s *session) count(ctx context.Context, rows record.Block) (int, error) {
	least, most, err := s.deps.Tables.Visible(ctx, rows)
	if err == nil && least < most {
		err = &flow.StoreError{Class: flow.ClassRetry, Err: fmt.Errorf("a replica of ClickHouse has %d rows where another has %d: retrying until they agree", least, most)}
	}
	if err != nil {
		return 0, fmt.Errorf("count rows %d to %d of a block: %w", rows.From, rows.To, err)
	}
	return int(most), nil
}

// counted returns the outcome of a successful insert when an earlier one may have been stored under the same token. A
// server killed between recording a token and storing its rows drops the retry and reports success.
func (s *session) counted(ctx context.Context, b *block, c flow.Claim, i int) (flow.Outcome, error) {
	piece, uncut := c.Piece(i), c.Uncut(i)
	n, err := s.visible(ctx, b, piece)
	if err != nil {
		return flow.Outcome{}, err
	}
	all := n
	if uncut != piece {
		if all, err = s.visible(ctx, b, uncut); err != nil {
			return flow.Outcome{}, err
		}
	}
	switch {
	case all == 0:
		return s.expired(ctx, b, c, piece)
	case n == b.left(piece) && all == n:
		if uncut != piece && s.strain.unanswered {
			s.doubt(b, c, uncut) // of two overlapping inserts, a view may have received the other
		}
		earlier, err := s.earlier(ctx, b, c, piece, n)
		o := s.stored(b, flow.ResultInserted, piece)
		o.Earlier = earlier
		return o, err
	case uncut != piece:
		return s.landed(ctx, b, c)
	}
	return flow.Outcome{}, s.partly(b, c, piece, n)
}

// partly is the error for rows of which only some are visible.
func (s *session) partly(b *block, c flow.Claim, r flow.Run, n int) error {
	return halt("the table has %d of the %d rows %d to %d of block %s: rows were removed or added: restore the table", n, b.left(r), r.From, r.To, c)
}

// landed returns the parts of the piece being cut that an earlier insert under its token stored: all, or those of an
// earlier first part. Aggregate tables are fed with them again and their days recounted, since views may have received
// another insert.
func (s *session) landed(ctx context.Context, b *block, c flow.Claim) (flow.Outcome, error) {
	var run flow.Run
	for i := range c.Pieces {
		if !c.InCut(i) {
			continue
		}
		piece := c.Piece(i)
		switch n, err := s.visible(ctx, b, piece); {
		case err != nil:
			return flow.Outcome{}, err
		case n == 0:
		case n != b.left(piece) || run.To > 0 && run.To != piece.From:
			return flow.Outcome{}, s.partly(b, c, piece, n)
		case run.To == 0:
			run = piece
		default:
			run.To = piece.To
		}
	}
	if err := s.reaggregate(ctx, b, c, *c.Cut); err != nil {
		return flow.Outcome{}, err
	}
	earlier, err := s.earlier(ctx, b, c, run, b.left(run))
	if err != nil {
		return flow.Outcome{}, err
	}
	s.log.WarnContext(ctx, "an earlier insert landed late", "claim", c, "from", run.From, "to", run.To)
	o := s.stored(b, flow.ResultLandedLate, run)
	o.Landed, o.Earlier = run, earlier
	return o, nil
}

// stored returns the outcome of stored rows.
func (s *session) stored(b *block, result flow.Result, r flow.Run) flow.Outcome {
	s.strain.rejected = 0
	s.recovered()
	s.metrics.rows.Add(float64(b.left(r)))
	return flow.Outcome{Result: result, LastRow: slices.Max(b.columns.StreamSeq[b.at(r.From):b.at(r.To)])}
}

// byLooking stores piece i when its token may be forgotten or the table rejects its repeat: it is inserted only if none
// of its rows is visible. It is then unknown which views received them: aggregate tables, which tolerate a row twice,
// are fed again, and the days are listed for a recount.
//
// The insert still carries the token, as a paused owner may send the same insert.
func (s *session) byLooking(ctx context.Context, b *block, c flow.Claim, i int) (flow.Outcome, error) {
	s.repeated = true
	uncut := c.Uncut(i)
	visible, err := s.visible(ctx, b, uncut)
	if err != nil {
		return flow.Outcome{}, err
	}
	s.log.WarnContext(ctx, "completing a claim by its visible rows", "claim", c, "from", uncut.From, "to", uncut.To, "visible", visible)
	if visible == 0 {
		err = s.insertAll(ctx, b, c, []int{i})[0]
	}
	o, err := s.judge(ctx, b, c, i, err)
	if err == nil && o.Result == flow.ResultInserted {
		err = s.reaggregate(ctx, b, c, c.Piece(i))
	}
	if err != nil {
		return flow.Outcome{}, err // even if it is stored: its days are not listed yet
	}
	return o, nil
}

// reaggregate feeds the aggregate tables with rows again, and lists their days for a recount.
func (s *session) reaggregate(ctx context.Context, b *block, c flow.Claim, r flow.Run) error {
	if err := s.deps.Tables.Reaggregate(ctx, s.rowsOf(b, r)); err != nil {
		return fmt.Errorf("feed the aggregate tables again: %w", err)
	}
	s.doubt(b, c, r)
	return nil
}

// doubt lists for a recount, with the next write, every stored day under which views may have received these rows.
func (s *session) doubt(b *block, c flow.Claim, r flow.Run) {
	var days []flow.Doubt
	last := int64(-1)
	for _, ms := range b.columns.TS[b.at(r.From):b.at(r.To)] {
		if day := flow.Day(ms); day != last {
			days, last = append(days, flow.Doubt{Day: flow.UTCDay(ms), Stored: flow.UTCDay(c.StoredAt)}), day
			if c.RenewedAt > 0 {
				days = append(days, flow.Doubt{Day: flow.UTCDay(ms), Stored: flow.UTCDay(c.RenewedAt)})
			}
		}
	}
	s.next = s.next.InDoubt(days)
}

// deadLetter dead-letters rows of a claim that ClickHouse rejects, as posted.
func (s *session) deadLetter(ctx context.Context, b *block, r flow.Run, reason string) (flow.Outcome, error) {
	rows := s.rowsOf(b, r)
	for row := rows.From; row < rows.To; row++ {
		if err := s.deadLetterRow(ctx, b, row, reason); err != nil {
			return flow.Outcome{}, err
		}
	}
	return flow.Outcome{Result: flow.ResultDeadLettered, Rows: rows.To - rows.From}, nil
}

// deadRows counts the rows of a claim that are, or will be, dead-lettered.
func (s *session) deadRows(b *block, c flow.Claim) int {
	n := c.DeadLettered
	for i, p := range c.Pieces {
		if p.State == flow.PieceDead {
			n += b.left(c.Piece(i))
		}
	}
	return n
}

// codeRejected marks dead letters rejected by the warehouse or the state store.
const codeRejected = "refused"

// deadLetterRow dead-letters one row of the block. Blocks do not keep their messages, so it reads the message again.
func (s *session) deadLetterRow(ctx context.Context, b *block, row int, reason string) error {
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
	if e.Seq != seq || reader.StreamID() != s.state.StreamID {
		return halt("message %d is gone", seq)
	}
	m, raw, err := record.Find(&e, index)
	m.Incarnation = s.state.IncarnationOf(seq)
	if err != nil {
		return halt("record %d of message %d is missing", index, seq)
	}
	return s.publishDead(ctx, dead(m, index, raw, codeRejected, reason))
}

// insertBeat is the interval of heartbeats during an insert, which has a timeout.
const insertBeat = 15 * time.Second

// beatWhile sends heartbeats during an insert up to its timeout: a longer insert hangs.
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

func (s *session) publishDead(ctx context.Context, d flow.Dead) error {
	s.beat() // there may be many
	if err := s.deps.DeadLetters.Publish(ctx, d); err != nil {
		return fmt.Errorf("dead-letter record %d of message %d: %w", d.Index, d.Message.Seq, err)
	}
	s.metrics.dead.Inc()
	s.log.WarnContext(ctx, "dead-lettered a record or message", "seq", d.Message.Seq, "index", d.Index, "code", d.Code, "reason", d.Reason)
	return nil
}

// writeDown writes the audit of changes, which a loop of their own applies.
func (s *session) writeDown(ctx context.Context, changes []flow.Message) error {
	if len(changes) == 0 {
		return nil
	}
	if s.deps.Audits == nil {
		return halt("message %d is a change, but this ingester does not apply changes", changes[0].Seq)
	}
	err := s.deps.Audits.WriteDown(ctx, changes)
	var rejected *flow.StoreError
	if errors.As(err, &rejected) && rejected.Class == flow.ClassPoison {
		// The table is the cause: an audit is plain text.
		return halt("ClickHouse rejects the audit of changes: %w", err)
	}
	return err
}
