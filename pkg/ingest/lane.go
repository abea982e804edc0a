package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/pkg/flow"
	"sluice/pkg/ingest/dedup"
	"sluice/pkg/record"
)

// lane is the loop of one lane while this process holds it.
type lane struct {
	health
	number  int
	deps    Deps
	metrics *laneMetrics
	peers   *atomic.Int32 // lanes this process works on

	records  *dedup.RecordIndex // of what is stored, as far as a session has learned; owned by store while one runs
	requests *dedup.Requests    // which requests came lately; its clock is owned by fill while a session runs, the rest by store
	strain   strain             // owned by store while a session runs
}

// run works on the lane until ctx ends, then returns nil; or until another
// process has taken it, then returns flow.ErrNotOwner; or until the warehouse
// could not be reached for long and another process might, then returns
// flow.ErrUnreachable. Any other failure ends a session, never the loop.
func (l *lane) run(ctx context.Context) error {
	beat, end := l.cfg.Heartbeat(l.loop)
	defer end()
	l.beat = beat
	if err := l.untilReady(ctx); err != nil {
		return err
	}
	for owned := false; ctx.Err() == nil; {
		l.beat()
		state, err := l.take(ctx, owned)
		if errors.Is(err, errSuperseded) {
			l.log.Info("lane taken over by another process", "owner", state.Owner)
			return flow.ErrNotOwner
		}
		owned = owned || err == nil
		if err == nil && state.Claim == nil && state.Held(l.cfg.Now()) {
			err = errHeld
		} else if err == nil {
			err = l.session(ctx, state)
		}
		if ctx.Err() != nil {
			return nil
		}
		l.beat()
		pause := heldTick
		if !errors.Is(err, errHeld) && !errors.Is(err, flow.ErrNotOwner) { // a hold, or another owner: the lane state says which
			pause = l.failed(err)
			if l.isCutOff() && l.deps.Leases.Others() {
				// What is claimed the next owner stores, under the same tokens.
				return fmt.Errorf("%w: %w", flow.ErrUnreachable, err)
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return nil
}

// untilReady waits until the warehouse can be used, or ctx ends.
func (l *lane) untilReady(ctx context.Context) error {
	if l.cfg.Ready == nil {
		return nil
	}
	tick := time.NewTicker(idleTick)
	defer tick.Stop()
	for begun := time.Now(); ; {
		select {
		case <-l.cfg.Ready:
			return nil
		case <-ctx.Done():
			return nil
		case <-tick.C:
			l.beat()
		}
		if time.Since(begun) >= l.cfg.GiveUp && l.deps.Leases.Others() {
			return fmt.Errorf("%w: it was not ready for %v", flow.ErrUnreachable, l.cfg.GiveUp)
		}
	}
}

// errHeld says that the lane is held between two blocks, with no claim open. It
// is no failure.
var errHeld = errors.New("the lane is held")

// heldTick is how often a lane that is held looks whether it may resume.
const heldTick = 100 * time.Millisecond

// errSuperseded says that another process has taken the lane since it was ours.
var errSuperseded = errors.New("the lane has another owner")

// take reads the lane state and makes it ours. It may be taken from another owner,
// once: when it was ours before, another has done the same since.
func (l *lane) take(ctx context.Context, owned bool) (flow.LaneState, error) {
	s, err := l.deps.States.Read(ctx, l.number)
	switch {
	case err != nil:
		return s, fmt.Errorf("read the lane state: %w", err)
	case s.Owner == l.cfg.Owner:
		return s, nil
	case owned:
		return s, errSuperseded
	}
	before := s.Owner
	s.Owner = l.cfg.Owner
	// From here on the owner before us cannot move the checkpoint. What it has
	// claimed we store too, under the same tokens.
	if s, err = l.deps.States.CompareAndSwap(ctx, l.number, s); err != nil {
		return s, fmt.Errorf("take the lane: %w", err)
	}
	// What the owner before has sent may arrive yet.
	l.strain.unanswered = s.Claim != nil
	l.log.Info("lane taken", "done", s.Done, "claim", s.Claim, "from", before)
	return s, nil
}

// session is one run of the loop of a lane, from its checkpoint to the first
// failure. Everything it rests on is in the lane state; nothing outlives it. Its
// fields are owned by store.
type session struct {
	*lane
	took atomic.Int64 // how long the last insert took, ns; 0 before one has; read by fill

	state      flow.LaneState // as it was written last
	next       flow.LaneState // as it will be written next: a block that is stored is done there
	repeated   bool           // pieces of the claim may have been inserted before: their rows are counted after the insert
	remembered time.Time      // when the tokens of the claim were last known to be remembered; zero when it is not known
}

// session resumes from a lane state until something fails or ctx ends.
func (l *lane) session(ctx context.Context, state flow.LaneState) error {
	if err := state.Check(); err != nil {
		return &haltError{err}
	}
	from := state.Done + 1
	reader, err := l.deps.Lanes.Open(ctx, l.number, from)
	if err != nil {
		return fmt.Errorf("open the lane at message %d: %w", from, err)
	}
	defer reader.Close()
	id := reader.StreamID()
	if state.StreamID != "" && state.StreamID != id {
		return halt("the stream was recreated: messages up to %d were stored from %s, now there is %s; unstored messages are lost; run sluice lanes reset --lane %d and name the last unchanged message, 0 for none", state.Done, state.StreamID, id, l.number)
	}
	state.StreamID = id
	before := state.Incarnations
	if len(before) == 0 || state.Reset {
		if state, err = l.begin(ctx, state, reader.Created()); err != nil {
			return err
		}
	}
	if err := l.compare(ctx, state); err != nil {
		return err
	}
	// After the lane state: an order that is written from now on changes it, so that
	// this session loses its next compare-and-swap.
	orders, err := l.deps.Forgets.Forgets(ctx)
	if err != nil {
		return err
	}
	if err := l.requests.Recall(ctx, state, l.heads, l.beat); err != nil {
		return err
	}

	l.records.ForgetAll()
	s := &session{lane: l, state: state, next: state}
	if !slices.Equal(before, state.Incarnations) { // readers of what changes made ask the lane state for the incarnation
		if err := s.swap(ctx, state); err != nil {
			return err
		}
	}
	l.metrics.lag.again()
	messages := make(chan flow.Entry, readAhead)
	blocks := make(chan *block)  // without a buffer: a block grows as long as store is busy
	free := make(chan *block, 2) // one is filled while the other is stored
	free <- newBlock()
	free <- newBlock()
	g, run := errgroup.WithContext(ctx)
	g.Go(func() error { return s.read(run, reader, from, messages) })
	g.Go(func() error { return s.fill(run, state, record.NewForgets(orders), messages, blocks, free) })
	g.Go(func() error { return s.store(run, blocks, free) })
	return g.Wait()
}

// begin makes the first incarnation of a lane, above that of every row, and above the
// time at which its stream was created; or it completes those that a reset has left.
//
// So when there is no lane state, rows of an incarnation above that time are of
// this very stream: it was read before, and the state is lost. It is not known which
// messages they are of if the stream was set back, so the lane halts.
func (l *lane) begin(ctx context.Context, state flow.LaneState, created time.Time) (flow.LaneState, error) {
	made := uint64(max(0, created.UnixMilli()))
	last, seq, err := l.deps.Index.Last(ctx, l.number, 0)
	if err != nil {
		return state, fmt.Errorf("look for earlier incarnations of the lane: %w", err)
	}
	n := len(state.Incarnations)
	if n == 0 {
		if last > made {
			return state, halt("the lane state is gone, but records of its stream are stored up to message %d: the bucket of lane states was lost; restore it, or run sluice lanes reset --lane %d and name the last unchanged message; nothing is stored twice", seq, l.number)
		}
		return state.WithIncarnation(max(uint64(l.cfg.Now().UnixMilli()), last+1, made+1), state.Done+1), nil
	}
	// The reset may not have known of all rows, and of no incarnation at all if the
	// lane state was lost.
	chosen, listed := state.Incarnations[n-1], slices.Clone(state.Incarnations[:n-1])
	stored, err := l.deps.Index.Incarnations(ctx, l.number, made)
	if err != nil {
		return state, fmt.Errorf("look for earlier incarnations of the lane: %w", err)
	}
	for _, one := range stored {
		if !slices.ContainsFunc(listed, func(in flow.Incarnation) bool { return in.ID == one.ID }) {
			listed = append(listed, one)
		}
	}
	slices.SortFunc(listed, func(a, b flow.Incarnation) int { return cmp.Compare(a.ID, b.ID) })
	if len(listed) > 0 {
		listed[0].First = 1
	} else { // nothing was stored of the messages before
		chosen.First = state.Done + 1
	}
	state.Incarnations, state.Reset = listed, false
	return state.WithIncarnation(max(chosen.ID, last+1), chosen.First), nil
}

// compare looks where the table ends.
//
// A table that reaches further than anything that was ever claimed of the current
// incarnation, or has rows of a later one, belongs to a state that is gone, as when NATS
// was restored from a backup: resuming would give new messages the places of old ones, so
// the lane halts until an operator has named the last message that is unchanged. Those
// behind it are of another incarnation then, and records that are known by their place are
// looked up in those before.
//
// One that was set back with flow.sources halts the lane too (marks). Where flow.records
// alone ends before the checkpoint, rows were deleted: that is reported.
func (l *lane) compare(ctx context.Context, s flow.LaneState) error {
	of, _, err := l.deps.Index.Last(ctx, l.number, 0)
	if err != nil {
		return fmt.Errorf("look for later incarnations of the lane: %w", err)
	}
	if of > s.Incarnation() {
		return halt("the table has records of incarnation %d, which the lane state does not list: the bucket of lane states was set back; run sluice lanes reset --lane %d and name the last unchanged message", of, l.number)
	}
	_, last, err := l.deps.Index.Last(ctx, l.number, s.Incarnation())
	if err != nil {
		return fmt.Errorf("compare the end of the table with the checkpoint: %w", err)
	}
	claimed := s.Done
	if s.Claim != nil {
		claimed = s.Claim.Last
	}
	if last > claimed {
		return halt("the table has records of messages up to %d, but the lane was never read beyond %d: NATS was restored or recreated; records accepted since and not stored are lost; run sluice lanes reset --lane %d and name the last unchanged message", last, claimed, l.number)
	}
	line, err := l.expiryLine(ctx)
	if err != nil {
		return err
	}
	if _, expired, _ := s.Unexpired(line); last < s.LastRow && s.LastRow > expired {
		l.metrics.missing.Set(float64(s.LastRow - last))
		l.log.Error("the table has lost records that were stored: restore it, or rebuild it from the stream",
			"last_stored", s.LastRow, "last_in_table", last)
	} else {
		l.metrics.missing.Set(0)
	}
	_, err = l.marks(ctx, s, nil)
	return err
}

// marks asks how far days reach in the warehouse, and makes sure that the answer can be
// trusted: what it is read from must have received all rows that were stored of the lane.
// It is asked before each claim, so that a warehouse that was set back halts the lane
// before anything is stored on top.
func (l *lane) marks(ctx context.Context, s flow.LaneState, days []flow.SourceDay) (flow.Marks, error) {
	marks, err := l.deps.Index.Marks(ctx, l.number, s.Incarnation(), days)
	if err != nil {
		return marks, fmt.Errorf("look how far the sources reach: %w", err)
	}
	if marks.Rows >= s.Totals.Stored {
		return marks, nil
	}
	// Either flow.sources alone has lost something: then records that are stored would be
	// taken for new. Or flow.records has lost the same, as when all of ClickHouse was
	// restored from a backup: then records would be lost whose requests the log knows.
	stale, err := l.deps.Index.StaleSourceDays(ctx, l.number, s.Incarnation())
	if err != nil {
		return marks, fmt.Errorf("compare flow.sources with flow.records: %w", err)
	}
	if len(stale) > 0 {
		return marks, halt("flow.sources is missing rows: it lacks records of %d days, of source %q first, so that records which are resent would be stored twice; fill it from flow.records (docs/runbooks/lanes.md says how)", len(stale), stale[0].Source)
	}
	return marks, halt("ClickHouse was set back: %d of the %d rows that were stored of the lane are missing; stop the ingesters, run sluice rebuild, and put its tables in place (docs/runbooks/RecordsLostInTable.md says how)", s.Totals.Stored-marks.Rows, s.Totals.Stored)
}

// checkMoves compares the move markers that a block has, and those by which requests
// of it are void, with the lists of lanes they were written for. A list of an earlier
// revision was set back: its apis have answered OK for requests that are void.
func (s *session) checkMoves(ctx context.Context, moves []flow.Move) error {
	for _, move := range moves {
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

// heads reads what the headers of messages of the lane say.
func (l *lane) heads(ctx context.Context, from, to uint64, f func(*flow.Entry) error) error {
	return l.deps.Lanes.Heads(ctx, l.number, from, to, f)
}

// without returns the rows of runs that are not in others.
func without(runs, others []flow.Run) (rest []flow.Run) {
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
