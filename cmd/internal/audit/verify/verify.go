package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice/cmd/internal/audit/expiry"
	"sluice/pkg/flow"
	"sluice/pkg/ingest/dedup"
	"sluice/pkg/record"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
	"sluice/pkg/warehouse/native"
)

type Config struct {
	Since    time.Time                // only messages appended since then; default all
	Limit    int                      // maximum number of findings to name; default 20
	Deep     bool                     // compare every column, not only ids and places
	Repeats  bool                     // also name deduplicated records, up to Limit
	Wait     time.Duration            // for claimed blocks; default 15 s
	Progress func(done, total uint64) // messages, called every 512; default none
}

func (c Config) withDefaults() Config {
	if c.Limit == 0 {
		c.Limit = 20
	}
	if c.Wait == 0 {
		c.Wait = 15 * time.Second
	}
	if c.Progress == nil {
		c.Progress = func(uint64, uint64) {}
	}
	return c
}

// verifier is one run.
type verifier struct {
	cfg         Config
	stream      *stream.Stream
	db          *warehouse.DB
	report      *Report
	outcomes    map[origin]string
	rowlessDays map[string]int64 // missing records, by day
	rows        map[string]int64 // by day, counted first
	line        string           // the expiry line
	aged        bool             // rows may have expired
	orders      []flow.Forget
	forget      record.Forgets
	read        uint64 // messages so far
	total       uint64 // messages to read
	settled     bool   // no block is in doubt
}

// origin is the place of a record; index -1 is the whole message.
type origin struct {
	incarnation uint64
	lane        int
	seq         uint64
	index       int
}

// Run accounts for every record. An error means that verification was not possible; its
// result is in the Report.
func Run(ctx context.Context, s *stream.Stream, db *warehouse.DB, cfg Config) (*Report, error) {
	const tries = 5
	for try := 1; ; try++ {
		line, err := expiry.Line(ctx, s, db)
		if err != nil {
			return nil, err
		}
		r, err := run(ctx, s, db, cfg, line)
		switch {
		case errors.Is(err, errPurged) && try < tries:
			continue
		case err != nil || r.OK:
			return r, err
		}
		// Expected rows may have expired, as when the retention was changed.
		if now, err := expiry.Line(ctx, s, db); err != nil || now == line {
			return r, err
		}
	}
}

// run accounts for every record by an expiry line.
func run(ctx context.Context, s *stream.Stream, db *warehouse.DB, cfg Config, line string) (*Report, error) {
	v := &verifier{
		cfg: cfg.withDefaults(), stream: s, db: db, report: &Report{At: time.Now().UTC()},
		outcomes: map[origin]string{}, rowlessDays: map[string]int64{}, settled: true, line: line,
	}
	var err error
	if v.rows, err = db.RowsPerDay(ctx, v.line); err != nil {
		return nil, err
	}
	lanes, err := v.positions(ctx)
	if err != nil {
		return nil, err
	}
	if v.orders, err = s.Forgets(ctx); err != nil {
		return nil, err
	}
	v.forget = record.NewForgets(v.orders)
	for f, err := range stream.NewDeadLetters(s).Resolutions(ctx) {
		if err != nil {
			return nil, err
		}
		v.outcomes[origin{f.Incarnation, f.Lane, f.Seq, f.Index}] = f.Outcome // the last one counts
	}
	if err := v.pinned(ctx, lanes, func(ctx context.Context) error {
		for _, l := range lanes {
			if err := l.account(ctx); err != nil {
				return fmt.Errorf("lane %d: %w", l.Lane.Lane, err)
			}
			v.report.Lanes = append(v.report.Lanes, l.Lane)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if err := v.extents(ctx, lanes); err != nil {
		return nil, err
	}
	if err := v.duplicates(ctx, lanes); err != nil {
		return nil, err
	}
	if err := v.counters(ctx); err != nil {
		return nil, err
	}
	if err := v.receipts(ctx); err != nil {
		return nil, err
	}
	r := v.report
	r.OK = r.Found == 0 && len(r.Problems) == 0 && r.Total().balanced()
	return r, nil
}

// positions reads the checkpoint and the end of every lane.
func (v *verifier) positions(ctx context.Context) ([]*lane, error) {
	if err := v.stream.Refresh(ctx); err != nil {
		return nil, err
	}
	positions := stream.NewLaneStates(v.stream)
	var all []*lane
	for _, info := range v.stream.Lanes() {
		l := &lane{
			verifier: v, info: info, minutes: minutes{}, digest: &native.Digest{Deep: v.cfg.Deep},
			void: map[request]bool{}, again: map[origin]bool{},
		}
		l.Lane = Lane{Lane: info.Number}
		pos, err := v.position(ctx, positions, info)
		if err != nil {
			return nil, err
		}
		l.setState(pos)
		v.doubts(info.Number, pos.Recount)
		all = append(all, l)
	}
	if err := v.settle(ctx, positions, all); err != nil {
		return nil, err
	}
	// After the checkpoints, so that none is beyond its lane's end.
	if err := v.stream.Refresh(ctx); err != nil {
		return nil, err
	}
	for i, info := range v.stream.Lanes() {
		if i < len(all) {
			all[i].info.First, all[i].First = info.First, max(info.First, all[i].position.Base()+1)
			all[i].Last = max(info.Last, all[i].Settled)
		}
	}
	for _, l := range all {
		if !v.cfg.Since.IsZero() {
			since, err := v.stream.FirstSince(ctx, l.Lane.Lane, v.cfg.Since)
			if err != nil {
				return nil, err
			}
			l.First = max(l.First, since)
		}
		_, expired, _ := l.position.Unexpired(v.line)
		v.aged = v.aged || expired > 0 || len(l.position.Incarnations) > 1
		l.First = max(l.First, expired+1) // the totals account for earlier messages
		if l.Last >= l.First {
			v.total += l.Last - l.First + 1
		}
	}
	return all, nil
}

// position reads the state of a lane. A fault of it becomes a problem of the report, and
// then no message of the lane is settled.
func (v *verifier) position(ctx context.Context, positions *stream.LaneStates, info stream.Lane) (flow.LaneState, error) {
	pos, err := positions.Read(ctx, info.Number)
	switch {
	case errors.Is(err, flow.ErrGap):
		v.problem("%v: the lane is halted until its stream or its lane state is restored", err)
	case err != nil:
		return pos, err
	case pos.StreamID != "" && pos.StreamID != info.StreamID():
		v.problem("lane %d was deleted and recreated: records of %s cannot be verified, and the lane is halted; sluice lanes reset sets its resume point", info.Number, pos.StreamID)
	default:
		return pos, nil
	}
	return flow.LaneState{}, nil
}

func (l *lane) setState(pos flow.LaneState) {
	l.position, l.Settled, l.claimed = pos, pos.Done, 0
	l.requests = dedup.NewLedger(l.stream.RepeatWindow(), pos.Moves)
	if pos.Claim != nil {
		l.claimed = pos.Claim.Last
	}
}

// settle waits until the claimed blocks are stored.
func (v *verifier) settle(ctx context.Context, positions *stream.LaneStates, all []*lane) error {
	deadline := time.Now().Add(v.cfg.Wait)
	for _, l := range all {
		for begun := l.claimed; begun > l.Settled; {
			if time.Now().After(deadline) {
				v.settled = false
				v.note("block %d-%d of lane %d is in doubt: it is claimed, but was not stored within %v; its records count as backlog",
					l.Settled+1, l.claimed, l.Lane.Lane, v.cfg.Wait)
				break
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
			pos, err := positions.Read(ctx, l.Lane.Lane)
			if err != nil {
				return err
			}
			l.setState(pos)
		}
	}
	return nil
}

func (v *verifier) note(format string, args ...any) {
	v.report.Notes = append(v.report.Notes, fmt.Sprintf(format, args...))
}

func (v *verifier) problem(format string, args ...any) {
	v.report.Problems = append(v.report.Problems, fmt.Sprintf(format, args...))
}

func (v *verifier) find(f Finding) {
	if v.report.Found++; v.report.Found <= uint64(v.cfg.Limit) {
		v.report.Findings = append(v.report.Findings, f)
	}
}

// receipts finds orders to forget instances that were not carried out.
func (v *verifier) receipts(ctx context.Context) error {
	receipts, err := v.db.Receipts(ctx)
	for _, order := range v.orders {
		if !slices.ContainsFunc(receipts, func(r warehouse.Receipt) bool { return r.ID == order.ID && r.Done }) {
			v.problem("order %s to forget instances was not carried out, and their records may be left: run sluice forget to finish it", order.ID)
		}
	}
	return err
}

// extents finds rows of lanes, or of messages, that do not exist.
func (v *verifier) extents(ctx context.Context, lanes []*lane) error {
	extents, err := v.db.Extents(ctx)
	if err != nil {
		return err
	}
	if err := v.stream.Refresh(ctx); err != nil { // after the rows, so that their messages are included
		return err
	}
	last := map[int]uint64{}
	for _, l := range v.stream.Lanes() {
		last[l.Number] = l.Last
	}
	positions := map[int]flow.LaneState{}
	for _, l := range lanes {
		positions[l.Lane.Lane] = l.position
	}
	for _, e := range extents {
		end, known := last[e.Lane]
		p := positions[e.Lane]
		switch {
		case !known:
			v.problem("the table has %d rows of lane %d, which does not exist", e.Rows, e.Lane)
		case e.Incarnation < p.Incarnation(), p.Incarnation() == 0 && p.Revision > 0: // reset, and its next incarnation has not begun
			v.note("the table has %d rows of an earlier incarnation of lane %d, which cannot be compared", e.Rows, e.Lane)
		case e.Incarnation > p.Incarnation():
			v.problem("the table has %d rows of an incarnation of lane %d that its lane state does not list: NATS was restored to an earlier state, or the table belongs to another installation", e.Rows, e.Lane)
		case e.Last > end:
			v.problem("the table has rows of lane %d up to message %d, but the lane ends at %d: NATS was restored to an earlier state, or the table belongs to another installation", e.Lane, e.Last, end)
		}
	}
	return nil
}
