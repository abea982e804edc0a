// Package rebuild recreates the tables from the retained messages, in a shadow database,
// and compares them with the live tables.
//
// Rows of purged messages are copied first, from the live tables. Messages are replayed
// afterwards, so that a resent record is deduplicated and never replaces an older one.
// Whether a request repeats a purged one is looked up in the live tables.
//
// A lane is replayed as the ingester reads it: decode, deduplicate, claim, insert under a
// token of the messages and the dropped rows. The claims are in the shadow database. So a
// rebuild can be interrupted, repeated, and later continued with newer messages; dropping
// the database discards it.
package rebuild

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"sluice/cmd/internal/audit/expiry"
	"sluice/pkg/flow"
	"sluice/pkg/ingest/dedup"
	"sluice/pkg/record"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

type Config struct {
	Rows     int                      // close a block at this many records; default 50 000
	Bytes    int                      // or at this many bytes of memory; default 32 MiB
	Limit    int                      // maximum number of differing records to name; default 20
	Progress func(done, total uint64) // messages, called after every block; default none
}

func (c Config) withDefaults() Config {
	if c.Rows == 0 {
		c.Rows = 50_000
	}
	if c.Bytes == 0 {
		c.Bytes = 32 << 20
	}
	if c.Limit == 0 {
		c.Limit = 20
	}
	if c.Progress == nil {
		c.Progress = func(uint64, uint64) {}
	}
	return c
}

// rebuild is one run.
type rebuild struct {
	cfg    Config
	stream *stream.Stream
	into   *warehouse.Shadow
	starts []warehouse.Start
	forget record.Forgets
	line   string                 // the expiry line: rows stored up to this day are not recreated
	dead   map[place]map[int]bool // indexes of dead letters, by message
	done   uint64                 // messages
	total  uint64
}

// place is a message.
type place struct {
	lane        int
	incarnation uint64
	seq         uint64
}

// Run rebuilds the messages up to each lane's checkpoint, and compares the tables. Meanwhile no
// message is purged.
func Run(ctx context.Context, s *stream.Stream, into *warehouse.Shadow, cfg Config) (report *Report, err error) {
	r := &rebuild{cfg: cfg.withDefaults(), stream: s, into: into, dead: map[place]map[int]bool{}}
	if err := s.Refresh(ctx); err != nil {
		return nil, err
	}
	from := map[int]uint64{}
	for _, info := range s.Lanes() {
		from[info.Number] = info.First
	}
	err = s.Pinned(ctx, stream.PinRebuild, func() map[int]uint64 { return from }, func(ctx context.Context) error {
		report, err = r.run(ctx)
		return err
	})
	return report, err
}

func (r *rebuild) run(ctx context.Context) (_ *Report, err error) {
	s, into := r.stream, r.into
	if r.line, err = expiry.Line(ctx, s, into.Live()); err != nil {
		return nil, err
	}
	if err := into.Prepare(ctx); err != nil {
		return nil, err
	}
	if err := r.orders(ctx); err != nil {
		return nil, err
	}
	lanes, err := r.plan(ctx)
	if err != nil {
		return nil, err
	}
	if err := into.Copy(ctx, r.starts, r.cfg.Progress); err != nil {
		return nil, err
	}
	if err := into.CopyExpired(ctx, r.line); err != nil {
		return nil, err
	}
	// After the checkpoints: the stream of dead letters has all of them up to there.
	for f, err := range stream.NewDeadLetters(s).Resolutions(ctx) {
		if err != nil {
			return nil, err
		}
		at := place{f.Lane, f.Incarnation, f.Seq}
		if r.dead[at] == nil {
			r.dead[at] = map[int]bool{}
		}
		r.dead[at][f.Index] = true
	}
	ends, err := r.ends(ctx)
	if err != nil {
		return nil, err
	}
	for _, end := range ends {
		for _, l := range lanes {
			if err := l.replay(ctx, end(l)); err != nil {
				return nil, fmt.Errorf("rebuild lane %d: %w", l.info.Number, err)
			}
		}
	}
	return r.compare(ctx, lanes)
}

// orders reads the orders to forget instances. Without a receipt, rows of an instance may
// still be in the live tables.
func (r *rebuild) orders(ctx context.Context) error {
	orders, err := r.stream.Forgets(ctx)
	if err != nil {
		return err
	}
	receipts, err := r.into.Live().Receipts(ctx)
	if err != nil {
		return err
	}
	for _, order := range orders {
		if !slices.ContainsFunc(receipts, func(one warehouse.Receipt) bool { return one.ID == order.ID && one.Done }) {
			return fmt.Errorf("order %s to forget instances was not carried out: run sluice forget first", order.ID)
		}
	}
	r.forget = record.NewForgets(orders)
	return nil
}

type lane struct {
	*rebuild
	info  stream.Lane
	state flow.LaneState
	first uint64          // first message to replay into the shadow
	next  uint64          // first message not inserted yet
	last  uint64          // last message to replay
	claim warehouse.Claim // a block of an interrupted run that may be inserted; zero when none
	live  uint64          // last message with a row of the last incarnation in the live tables; up to state.LastRow they lost the others

	requests *dedup.Ledger // of the messages before next; nil before the first replay
}

// plan finds the messages to replay.
func (r *rebuild) plan(ctx context.Context) ([]*lane, error) {
	if err := r.stream.Refresh(ctx); err != nil {
		return nil, err
	}
	planned, err := r.into.Plan(ctx)
	if err != nil {
		return nil, err
	}
	starts := map[int]warehouse.Start{}
	for _, start := range planned {
		starts[start.Lane] = start
	}
	positions := stream.NewLaneStates(r.stream)
	var all []*lane
	var fresh []warehouse.Start
	for _, info := range r.stream.Lanes() {
		pos, err := positions.Read(ctx, info.Number)
		if err != nil {
			return nil, err
		}
		if pos.StreamID != "" && pos.StreamID != info.StreamID() {
			return nil, fmt.Errorf("lane %d was deleted and recreated, and none of its messages are stored: set its resume point with sluice lanes reset", info.Number)
		}
		if pos.Incarnation() == 0 {
			continue // no message of it was ever stored
		}
		if c := pos.Claim; c != nil && c.First <= pos.Base() { // copied with the rows before it, its rows would be inserted again
			return nil, fmt.Errorf("lane %d has an open claim of messages from before a reset: repeat later, or if the lane is halted, stop the ingesters, run sluice lanes reset --lane %[1]d --last %d, which drops the claim, and repeat", info.Number, pos.Done)
		}
		l := &lane{rebuild: r, info: info, state: pos, last: pos.Done}
		if _, l.live, err = r.into.Live().Last(ctx, info.Number, pos.Incarnation()); err != nil {
			return nil, err
		}
		start, is := starts[info.Number]
		switch {
		case !is:
			if start, err = l.start(ctx); err != nil {
				return nil, err
			}
			if len(planned) > 0 && start.First > 1 {
				return nil, fmt.Errorf("lane %d was added after the rebuild into %s began, and its first messages are purged: drop that database and restart", info.Number, r.into.Database())
			}
			fresh = append(fresh, start)
		case start.Incarnation != pos.Incarnation():
			return nil, fmt.Errorf("lane %d was recreated or reset after the rebuild into %s began: drop that database and restart", info.Number, r.into.Database())
		}
		r.starts = append(r.starts, start)
		l.first, l.next = start.First, start.First
		if err := l.resume(ctx); err != nil {
			return nil, err
		}
		if l.last >= l.next {
			r.total += l.last - l.next + 1
		}
		all = append(all, l)
	}
	if len(fresh) > 0 {
		return all, r.into.Begin(ctx, fresh)
	}
	return all, nil
}

// start is where the replay begins: rows of earlier messages are copied. These are all from before a reset, unless the
// live tables lost every later row, and so those of messages that the lane read again after the reset.
func (l *lane) start(ctx context.Context) (warehouse.Start, error) {
	_, expired, _ := l.state.Unexpired(l.line) // expired rows that are still in the table are copied
	copied, last := l.state.Base(), len(l.state.Incarnations)-1
	if l.live == 0 && l.state.LastRow > expired {
		copied = 0
		for i, in := range l.state.Incarnations[:last] {
			_, seq, err := l.into.Live().Last(ctx, l.info.Number, in.ID)
			if err != nil {
				return warehouse.Start{}, err
			}
			copied = max(copied, min(seq, l.state.Incarnations[i+1].First-1)) // later ones were lost with NATS
		}
	}
	return warehouse.Start{Lane: l.info.Number, Incarnation: l.state.Incarnation(), First: max(l.info.First, copied+1, expired+1)}, nil
}

// resume continues an interrupted rebuild of the lane.
func (l *lane) resume(ctx context.Context) error {
	_, claim, err := l.into.Claims(ctx, l.info.Number)
	if err != nil {
		return err
	}
	if claim.Last > 0 {
		l.next, l.claim = claim.First, claim
		l.last = max(l.last, claim.Last)
	}
	if l.next < l.info.First && l.next <= l.last {
		return fmt.Errorf("lane %d: message %d was purged before it was inserted into %s: drop that database and restart", l.info.Number, l.next, l.into.Database())
	}
	return nil
}

// ends are the points at which all lanes wait for each other: every move marker, behind
// which records of a source are in other lanes, and the end. So a repeat is replayed after
// its original, whatever their lanes.
func (r *rebuild) ends(ctx context.Context) ([]func(*lane) uint64, error) {
	var all []func(*lane) uint64
	markers, err := r.stream.MoveMarkers(ctx)
	if err != nil {
		return nil, err
	}
	for _, at := range markers {
		ends := map[int]uint64{}
		for _, number := range r.stream.LaneNumbers() {
			next, err := r.stream.FirstSince(ctx, number, at.Add(time.Millisecond))
			if err != nil {
				return nil, err
			}
			ends[number] = next - 1
		}
		all = append(all, func(l *lane) uint64 { return min(ends[l.info.Number], l.last) })
	}
	return append(all, func(l *lane) uint64 { return l.last }), nil
}

// replay inserts the messages of the lane up to last, block by block.
func (l *lane) replay(ctx context.Context, last uint64) error {
	if l.next > last {
		return nil
	}
	if l.requests == nil {
		l.requests = dedup.NewLedger(l.stream.RepeatWindow(), l.state.Moves)
		err := l.stream.Heads(ctx, l.info.Number, l.info.First, l.next-1, func(e *flow.Entry) error {
			l.requests.Add(e)
			return nil
		})
		if err != nil {
			return err
		}
	}
	reader, err := l.stream.OpenLane(ctx, l.info.Number, l.next, 0)
	if err != nil {
		return err
	}
	defer reader.Close()
	b := &block{lane: l, hash: xxh3.New()}
	for l.next <= last {
		b.reset()
		for end := l.blockEnd(last, b); b.last < end && !b.full(l.claim); {
			e, err := reader.Next(ctx)
			if err != nil {
				return err
			}
			if err := b.add(&e); err != nil {
				return err
			}
		}
		if err := l.insert(ctx, b); err != nil {
			return err
		}
		l.next = b.last + 1
		l.done += b.last - b.first + 1
		l.cfg.Progress(l.done, l.total)
	}
	return nil
}

// blockEnd is the last message that the next block may have: all its rows are of one
// stored day and incarnation.
func (l *lane) blockEnd(last uint64, b *block) uint64 {
	days := l.state.StoredDays
	for i := len(days) - 1; i >= 0 && days[i].Last >= l.next; i-- {
		b.day = days[i].Day
		last = min(last, days[i].Last)
	}
	for _, in := range l.state.Incarnations {
		if in.First > l.next {
			last = min(last, in.First-1)
		}
	}
	if l.claim.Last != 0 {
		return l.claim.Last
	}
	return last
}

// insert claims a block and inserts its new rows. Deduplication is decided once, before
// the claim: afterwards the block would find its own rows in the table.
func (l *lane) insert(ctx context.Context, b *block) error {
	dropped := l.claim.Dropped
	if l.claim.Last == 0 {
		if err := b.settle(ctx); err != nil {
			return err
		}
		runs, err := b.repeated(ctx)
		if err != nil {
			return err
		}
		dropped = flow.FormatRuns(runs)
	}
	claim := warehouse.Claim{First: b.first, Last: b.last, Token: b.token(dropped), Dropped: dropped}
	if l.claim.Last != 0 {
		if claim != l.claim {
			return fmt.Errorf("messages %d to %d differ from the claimed block: drop database %s and restart", claim.First, claim.Last, l.into.Database())
		}
		l.claim = warehouse.Claim{}
	} else if err := l.into.Claim(ctx, l.info.Number, claim); err != nil {
		return err
	}
	runs, err := flow.ParseRuns(dropped)
	if err != nil {
		return err
	}
	b.columns.Drop(runs)
	// Claimed. A crash here repeats the insert; the token makes that harmless.
	const tries = 5
	for try := 1; ; try++ {
		err := l.into.Insert(ctx, record.Block{Columns: &b.columns, To: b.columns.Rows(), Token: claim.Token, StoredAt: b.storedAt()})
		var refused *flow.StoreError
		if err == nil || try == tries || !errors.As(err, &refused) || refused.Class != flow.ClassRetry {
			return err
		}
		select {
		case <-time.After(time.Duration(try) * time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
