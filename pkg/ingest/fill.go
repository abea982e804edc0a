package ingest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/ingest/dedup"
	"sluice/pkg/record"
)

// readAhead is the number of messages read ahead of decoding.
const readAhead = 4

// read forwards the messages of the lane, and fails if one is missing.
func (s *session) read(ctx context.Context, reader Reader, from uint64, messages chan<- flow.Entry) error {
	for want := from; ; want++ {
		e, err := reader.Next(ctx)
		if err != nil {
			return fmt.Errorf("read the lane: %w", err)
		}
		if e.Seq != want {
			return fmt.Errorf("read the lane: got message %d instead of %d: %w", e.Seq, want, flow.ErrGap)
		}
		s.metrics.messages.Inc()
		select {
		case messages <- e:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fill decodes messages into blocks and passes them to store, which accepts one only when it is idle. The claim in
// the session's first state, if any, is the first block, whatever its size. While nothing arrives it sends nil
// periodically, as a heartbeat.
func (s *session) fill(ctx context.Context, begun flow.LaneState, forget record.Forgets, messages <-chan flow.Entry, blocks chan<- *block, free <-chan *block) error {
	f := filler{session: s, begun: begun, moves: begun.Moves, messages: messages, blocks: blocks}
	for claim := begun.Claim; ; claim = nil {
		var b *block
		select {
		case b = <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
		b.reset()
		b.forget = forget
		b.shrink(2 * s.maxBytes()) // growth may double the capacity
		var err error
		if claim != nil {
			err = f.refill(ctx, b, *claim)
		} else {
			err = f.fillNew(ctx, b)
		}
		if err != nil {
			return err
		}
	}
}

// filler is the state of fill.
type filler struct {
	*session
	begun    flow.LaneState // first state of the session
	moves    []flow.Move    // move markers, up to the last block
	messages <-chan flow.Entry
	blocks   chan<- *block
	next     flow.Entry // the message that did not fit into the last block; Seq 0: none
	handed   time.Time  // when a block was last passed on
}

// refill fills the block of a claim again.
func (f *filler) refill(ctx context.Context, b *block, claim flow.Claim) error {
	void, err := flow.ParseRuns(claim.Void)
	if err != nil {
		return halt("the lane state is corrupt: claim %s: %w", claim, err)
	}
	for b.end.Seq < claim.Last {
		select {
		case e := <-f.messages:
			f.add(b, e, func(place int, _ *flow.Message) bool {
				for len(void) > 0 && void[0].To <= place {
					void = void[1:]
				}
				return len(void) > 0 && void[0].From <= place
			})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case f.blocks <- b:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fillNew fills b until it is passed on.
func (f *filler) fillNew(ctx context.Context, b *block) error {
	tick := time.NewTimer(f.cfg.MaxAge)
	defer tick.Stop()
	var asked time.Time // when the turn was asked for; zero: not yet
	for {
		if f.next.Seq == 0 { // add arrived messages before offering the block
			select {
			case f.next = <-f.messages:
			default:
			}
		}
		full := b.bytes() >= f.maxBytes() || b.columns.Rows() >= f.cfg.MaxRows
		ended := full || b.ended() || !b.empty() && f.next.Seq != 0 && f.begun.IncarnationOf(f.next.Seq) != f.begun.IncarnationOf(b.first)
		if f.next.Seq != 0 && !ended && (b.empty() || b.columns.Rows()+f.next.Records() <= f.cfg.MaxRows) {
			f.add(b, f.next, func(_ int, m *flow.Message) bool { return f.isVoid(b, m) })
			f.next = flow.Entry{}
			if time.Since(b.born) < f.cfg.MaxAge {
				continue
			}
		}

		var in <-chan flow.Entry
		var out chan<- *block
		var turn chan<- struct{}
		b.full = full || f.next.Seq != 0 && !ended
		ended = ended || f.next.Seq != 0
		pause := f.pause(b.columns.Rows())
		wait := time.Until(f.handed.Add(pause))
		switch {
		case b.empty():
			in, wait = f.messages, idleTick
		case ended, wait <= 0, time.Since(b.born) >= max(pause, f.cfg.MaxAge):
			if asked.IsZero() {
				asked = time.Now()
			}
			if wait = time.Until(asked.Add(f.patience())); b.turn || wait <= 0 {
				out, wait = f.blocks, time.Hour
			} else {
				turn = f.turn
			}
		}
		if !ended {
			in = f.messages
		}
		tick.Reset(wait)
		select {
		case f.next = <-in:
		case turn <- struct{}{}:
			b.turn = true
		case out <- b:
			f.handed = time.Now()
			return nil
		case <-tick.C:
			select {
			case f.blocks <- nil:
			default:
			}
		case <-ctx.Done():
			f.release(b)
			return ctx.Err()
		}
	}
}

// patience bounds a block's wait for its turn: an insert that hangs, many cuts of a piece, or slow answers to many
// lanes delay it no longer.
func (s *session) patience() time.Duration {
	return min(4*time.Duration(s.took.Load()), 5*time.Second)
}

// release ends the turn of a block.
func (l *lane) release(b *block) {
	if b.turn {
		b.turn = false
		<-l.turn
	}
}

// isVoid reports whether a request of the next message is void: its entry came too late, or its source had left the
// lane.
func (f *filler) isVoid(b *block, m *flow.Message) bool {
	if f.requests.IsVoid(&f.next) {
		return true
	}
	move, void := flow.MovedBy(f.moves, &f.next, m)
	if move.Seq > 0 && !slices.Contains(b.moves, move) {
		b.moves = append(b.moves, move)
	}
	return void
}

// add appends a message, all of one incarnation, without the void requests that isVoid selects. It never fails:
// undecodable records are dead-lettered.
func (f *filler) add(b *block, e flow.Entry, isVoid func(place int, m *flow.Message) bool) {
	if b.empty() {
		b.first, b.born = e.Seq, time.Now()
		f.metrics.lag.begin(e.Messages[0].Received)
	}
	b.end = f.requests.Tick(&e)
	for _, raw := range [...][]byte{e.Table, e.Body} {
		var size [8]byte
		binary.LittleEndian.PutUint64(size[:], uint64(len(raw)))
		_, _ = b.hash.Write(size[:])
		_, _ = b.hash.Write(raw)
	}
	for i := range e.Messages {
		m := &e.Messages[i]
		m.Incarnation = f.begun.IncarnationOf(e.Seq)
		_, kind, _ := strings.Cut(strings.TrimPrefix(m.Topic, "flow."), ".") // after the lane
		kind, _, _ = strings.Cut(kind, ".")
		b.places++
		switch {
		case isVoid(b.places-1, m):
			b.voids = flow.AddRow(b.voids, b.places-1)
			b.totals.Read += uint64(m.Records)
			b.totals.Void += uint64(m.Records)
		case e.Err != nil:
			b.deadLetter(*m, &record.BadRecordError{Index: -1, Code: record.CodeBadEntry, Reason: e.Err.Error(), Raw: e.Body})
		case kind == kindRecords:
			before := b.columns.Rows()
			bad, err := b.columns.AppendGood(m)
			if broken := (*record.BadRecordError)(nil); errors.As(err, &broken) {
				bad = append(bad, broken) // no row of the message was appended
			}
			for _, one := range bad {
				b.deadLetter(*m, one)
			}
			b.arrived(&e, m, before)
		case kind == kindChange:
			b.changes = append(b.changes, *m)
			b.extra += len(m.Body)
		case kind == kindMove:
			b.moves = append(b.moves, flow.Move{Source: m.Source, Revision: m.Revision, Seq: m.Seq})
		case kind != kindTick: // which only advances stream time
			b.deadLetter(*m, &record.BadRecordError{Index: -1, Code: "unknown_topic", Reason: "the message has an unknown topic", Raw: m.Body})
		}
	}
	f.moves = flow.AddMoves(f.moves, b.moved()) // a marker ends its block
}

// arrived counts the rows that a message appended, starting at from.
func (b *block) arrived(e *flow.Entry, m *flow.Message, from int) {
	n := b.columns.Rows() - from
	if n > 0 {
		for _, row := range b.forget.Rows(m, &b.columns, from) {
			b.skipped = flow.AddRow(b.skipped, row)
		}
		b.totals.Read += uint64(n)
		b.arrivals = append(b.arrivals, arrival{m.Received, n})
		b.countMonths(b.columns.TS[from:])
	}
	if r, ok := dedup.RequestOf(e, m, b.end, from, n); ok {
		b.requests = append(b.requests, r)
		b.extra += requestBytes
	}
}

// requestBytes is the memory of a request in a block.
const requestBytes = 200

// countMonths counts rows of these times. Neighbours mostly share a month.
func (b *block) countMonths(times []int64) {
	at := len(b.months) - 1
	for _, ms := range times {
		if at < 0 || ms < b.months[at].from || ms >= b.months[at].to {
			at = slices.IndexFunc(b.months, func(m month) bool { return m.from <= ms && ms < m.to })
		}
		if at < 0 {
			y, m, _ := time.UnixMilli(ms).UTC().Date()
			at = len(b.months)
			b.months = append(b.months, month{
				number: flow.Month(ms),
				from:   time.Date(y, m, 1, 0, 0, 0, 0, time.UTC).UnixMilli(), to: time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC).UnixMilli(),
			})
		}
		b.months[at].rows++
	}
}

func (b *block) deadLetter(m flow.Message, bad *record.BadRecordError) {
	index, n := bad.Index, uint64(1)
	if index < 0 { // the whole message: the publisher's count
		index, n = -1-m.Ordinal, uint64(max(m.Records, 1))
	}
	b.dead = append(b.dead, dead(m, index, bad.Raw, bad.Code, bad.Reason))
	b.extra += len(bad.Raw)
	b.totals.Read += n
	b.totals.DeadLettered += n
}

// dead is the record with this index of m, or all of m if it is below 0.
func dead(m flow.Message, index int, raw []byte, code, reason string) flow.Dead {
	m.Body = raw
	if index >= 0 {
		m.Encoding, m.Records = "", 1
	}
	return flow.Dead{Message: m, Index: index, Code: code, Reason: reason}
}

// maxBytes is the size limit of a block. The held lanes share the memory.
func (l *lane) maxBytes() int {
	if l.cfg.MaxBytes > 0 {
		return l.cfg.MaxBytes
	}
	return max(l.share(l.cfg.SharedBytes), minBytes)
}

// share is a lane's share of the bytes of all lanes of this process.
func (l *lane) share(bytes int) int { return bytes / int(max(1, l.peers.Load())) }

// minBytes is the smallest size limit of a block, however many lanes share the memory.
const minBytes = 1 << 20

// pause is the minimum time between a block and the next one of at most this many rows. Held lanes share the rate of
// parts. Every insert has a fixed cost, so blocks of few rows are paced to spend a 17th of the time on inserts, unless
// that delays their rows by more than 9/5 of MaxAge.
func (s *session) pause(rows int) time.Duration {
	pause := min(s.cfg.MinPause*time.Duration(max(1, s.peers.Load())), max(s.cfg.MinPause, s.cfg.MaxAge))
	if took := time.Duration(s.took.Load()); rows < fewRows {
		pause = max(pause, min(16*took, s.cfg.MaxAge*9/5-took))
	}
	return pause
}

// fewRows cost ClickHouse less than the fixed cost of an insert with all views.
const fewRows = 10_000
