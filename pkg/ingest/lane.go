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
	peers   *atomic.Int32 // lanes held by this process
	turn    chan struct{} // of these lanes, taken by fill and released by store: blocks of several lanes grow while one is inserted

	records  *dedup.RecordIndex // of stored records; owned by store while a session runs
	requests *dedup.Requests    // recent requests; while a session runs fill owns its clock, store the rest
	strain   strain             // owned by store while a session runs
}

// run works on the lane until ctx ends, then returns nil; until another process has taken it, then returns
// flow.ErrNotOwner; or until the warehouse was unreachable for long and another process might reach it, then returns
// flow.ErrUnreachable. Other failures end a session, not the loop.
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
		if !errors.Is(err, errHeld) && !errors.Is(err, flow.ErrNotOwner) { // not failures
			pause = l.failed(err)
			if l.isCutOff() && l.deps.Leases.Others() {
				// The next owner stores the claim under the same tokens.
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

// untilReady waits until the warehouse is usable, or ctx ends.
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

// errHeld means that the lane is held between two blocks, without a claim. It is not a failure.
var errHeld = errors.New("the lane is held")

// heldTick is the interval at which a held lane checks whether it may resume.
const heldTick = 100 * time.Millisecond

// errSuperseded means that another process has taken the lane.
var errSuperseded = errors.New("the lane has another owner")

// take reads the lane state and becomes its owner. It may take the lane from another owner once: if it already owned
// it, another process has taken it since.
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
	// From here on the previous owner cannot move the checkpoint. This process stores its
	// claim too, under the same tokens.
	if s, err = l.deps.States.CompareAndSwap(ctx, l.number, s); err != nil {
		return s, fmt.Errorf("take the lane: %w", err)
	}
	// Inserts of the previous owner may still arrive.
	l.strain.unanswered = s.Claim != nil
	l.log.Info("lane taken", "done", s.Done, "claim", s.Claim, "from", before)
	return s, nil
}

// session is one run of the loop of a lane, from its checkpoint to the first failure. All of its state is derived from
// the lane state. Its fields are owned by store.
type session struct {
	*lane
	took atomic.Int64 // duration of the last insert, ns; 0 before the first; read by fill

	state      flow.LaneState // as last written
	next       flow.LaneState // as written next: includes a stored block as done
	repeated   bool           // pieces of the claim may be inserted already: count their rows after the insert
	remembered time.Time      // when the claim's tokens were last known to be remembered; zero: unknown
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
	// Read after the lane state: a later order changes the state, so that this session
	// loses its next compare-and-swap.
	orders, err := l.deps.Forgets.Forgets(ctx)
	if err != nil {
		return err
	}
	if err := l.requests.Recall(ctx, state, l.heads, l.beat); err != nil {
		return err
	}

	l.records.ForgetAll()
	s := &session{lane: l, state: state, next: state}
	if !slices.Equal(before, state.Incarnations) { // readers of the state store read the incarnation from the lane state
		if err := s.swap(ctx, state); err != nil {
			return err
		}
	}
	l.metrics.lag.again()
	messages := make(chan flow.Entry, readAhead)
	blocks := make(chan *block)  // unbuffered: a block grows while store is busy
	free := make(chan *block, 2) // one is filled while the other is stored
	free <- newBlock()
	free <- newBlock()
	g, run := errgroup.WithContext(ctx)
	g.Go(func() error { return s.read(run, reader, from, messages) })
	g.Go(func() error { return s.fill(run, state, record.NewForgets(orders), messages, blocks, free) })
	g.Go(func() error { return s.store(run, blocks, free) })
	return g.Wait()
}

// begin writes the first incarnation of a lane, above that of every row and above the creation time of its stream, or
// completes those left by a reset.
//
// Without a lane state, rows of an incarnation above that time mean that this very stream was read and the state was
// lost. If the stream was set back, the messages of these rows are unknown, so the lane halts.
func (l *lane) begin(ctx context.Context, state flow.LaneState, created time.Time) (flow.LaneState, error) {
	// The messages of a lost or dropped claim are decided again; an insert of it would store them twice.
	switch running, err := l.deps.Index.Inserting(ctx, l.number); {
	case err != nil:
		return state, err
	case running:
		return state, errors.New("an earlier insert of the lane is still running in ClickHouse")
	}
	made := uint64(max(0, created.UnixMilli()))
	last, seq, err := l.deps.Index.Last(ctx, l.number, 0)
	if err != nil {
		return state, fmt.Errorf("read earlier incarnations of the lane: %w", err)
	}
	n := len(state.Incarnations)
	if n == 0 {
		if last > made {
			return state, halt("the lane state is gone, but records of its stream are stored up to message %d: the bucket of lane states was lost; restore it, or run sluice lanes reset --lane %d and name the last unchanged message; nothing is stored twice", seq, l.number)
		}
		return state.WithIncarnation(max(uint64(l.cfg.Now().UnixMilli()), last+1, made+1), state.Done+1), nil
	}
	// The reset may have missed rows, and all incarnations if the lane state was lost.
	chosen, listed := state.Incarnations[n-1], slices.Clone(state.Incarnations[:n-1])
	stored, err := l.deps.Index.Incarnations(ctx, l.number, made)
	if err != nil {
		return state, fmt.Errorf("read earlier incarnations of the lane: %w", err)
	}
	for _, one := range stored {
		// An insert may have reached flow.records alone before its claim was lost.
		if err := l.stale(ctx, one.ID); err != nil {
			return state, err
		}
		if !slices.ContainsFunc(listed, func(in flow.Incarnation) bool { return in.ID == one.ID }) {
			listed = append(listed, one)
		}
	}
	slices.SortFunc(listed, func(a, b flow.Incarnation) int { return cmp.Compare(a.ID, b.ID) })
	if len(listed) > 0 {
		listed[0].First = 1
	} else { // no earlier message was stored
		chosen.First = state.Done + 1
	}
	state.Incarnations, state.Reset = listed, false
	return state.WithIncarnation(max(chosen.ID, last+1), chosen.First), nil
}

// compare compares the end of the table with the lane state.
//
// A table beyond every claim of the current incarnation, or with rows of a later one, belongs to a lost state, as
// after a restore of NATS: resuming would reuse the places of other messages. The lane halts until an operator has
// named the last unchanged message. Later messages then belong to a new incarnation, and records identified by place
// are looked up in the earlier ones.
//
// A table that was set back together with flow.sources halts the lane too (marks). If only flow.records ends before
// the checkpoint, rows were deleted: that is reported.
func (l *lane) compare(ctx context.Context, s flow.LaneState) error {
	of, _, err := l.deps.Index.Last(ctx, l.number, 0)
	if err != nil {
		return fmt.Errorf("read later incarnations of the lane: %w", err)
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
		l.log.Error("the table is missing stored records: restore it, or rebuild it from the stream",
			"last_stored", s.LastRow, "last_in_table", last)
	} else {
		l.metrics.missing.Set(0)
	}
	_, err = l.marks(ctx, s, nil)
	return err
}

// marks returns the progress of days in the warehouse, after checking that flow.sources has received all stored rows of
// the lane. It is called before each claim, so that a warehouse that was set back halts the lane before anything more
// is stored.
func (l *lane) marks(ctx context.Context, s flow.LaneState, days []flow.SourceDay) (flow.Marks, error) {
	marks, err := l.deps.Index.Marks(ctx, l.number, s.Incarnation(), days)
	if err != nil {
		return marks, fmt.Errorf("read the progress of the sources: %w", err)
	}
	if marks.Rows >= s.Totals.Stored {
		return marks, nil
	}
	// Either only flow.sources lost rows: resent records would be stored twice. Or flow.records lost the same, as after
	// a restore of ClickHouse: a resent request that the log has would be dropped, though its rows are gone.
	if err := l.stale(ctx, s.Incarnation()); err != nil {
		return marks, err
	}
	return marks, halt("ClickHouse was set back: %d of the %d stored rows of the lane are missing; stop the ingesters, run sluice rebuild, and put its tables in place (docs/runbooks/RecordsLostInTable.md says how)", s.Totals.Stored-marks.Rows, s.Totals.Stored)
}

// stale halts the lane if flow.sources has not received all rows of an incarnation that flow.records has.
func (l *lane) stale(ctx context.Context, incarnation uint64) error {
	days, err := l.deps.Index.StaleSourceDays(ctx, l.number, incarnation)
	if err != nil {
		return fmt.Errorf("compare flow.sources with flow.records: %w", err)
	}
	if len(days) == 0 {
		return nil
	}
	return halt("flow.sources is missing rows: it lacks records of %d days, of source %q first, so resent records would be stored twice; refill it from flow.records (docs/runbooks/lanes.md says how)", len(days), days[0].Source)
}

// checkMoves compares the move markers of a block, and those that void its requests, with the lane lists they were
// written for. A list of an earlier revision was set back: its apis have acknowledged void requests.
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

// inserts is the number of concurrent inserts of a new block: several when more is waiting, to raise the rate; one while
// the lane keeps up, to create fewer parts.
func (s *session) inserts(b *block) int {
	if !b.full || time.Now().Before(s.strain.single) {
		return 1
	}
	return max(1, min(s.cfg.Together, b.columns.Bytes()/s.cfg.PieceBytes))
}

// Marks implements dedup.Tables.
func (s *session) Marks(ctx context.Context, days []flow.SourceDay) (flow.Marks, error) {
	return s.marks(ctx, s.next, days)
}

// Known implements dedup.Tables. A record whose original has expired is a new one, merged away or not: a rebuild must
// decide the same later.
func (s *session) Known(ctx context.Context, c *record.Columns, rows []int, found func(*flow.Identity)) error {
	line, err := s.expiryLine(ctx)
	if err != nil {
		return err
	}
	s.metrics.lookups.Inc()
	s.metrics.lookedUp.Add(float64(len(rows)))
	return s.deps.Index.Known(ctx, c, rows, line, found)
}

// heads reads the headers of messages of the lane.
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
