package dedup

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// Requests is the window of a lane's recent requests with records without a deduplication key. It outlives a session: a failed
// one leaves its state to the next. fill calls Tick and IsVoid; store calls the rest. Both may run concurrently.
type Requests struct {
	clock clock // owned by fill

	// Owned by store.
	window      window
	looked      map[uint64][]requestID // requests of messages read again
	ends        []Moment               // ends of the last two decided blocks: the lane state has one of them
	stream      string                 // StreamID of the window; empty: no window
	incarnation uint64                 // of the lane
}

// NewRequests returns an empty window of stream time.
func NewRequests(window time.Duration) *Requests {
	return &Requests{clock: clock{window: window}, looked: map[uint64][]requestID{}}
}

// Heads calls f with the messages of the lane in a range, as far as it still holds them, in order: with their headers, and
// perhaps their bodies.
type Heads func(ctx context.Context, from, to uint64, f func(*flow.Entry) error) error

// Recall fills the window before a checkpoint, unless an earlier session has left it. It calls alive periodically.
func (r *Requests) Recall(ctx context.Context, p flow.LaneState, heads Heads, alive func()) error {
	if r.stream == p.StreamID && r.incarnation == p.Incarnation() && r.clock.knows(p.Done+1) && r.remembers(p.Done) {
		return nil
	}
	r.stream = ""
	r.clock.begin(p.VoidThrough)
	r.window.reset(p.Done)
	clear(r.looked)
	if n, first := 0, max(p.DedupFrom, 1); first <= p.Done {
		err := heads(ctx, first, p.Done, func(e *flow.Entry) error {
			if n++; n%1000 == 0 {
				alive()
			}
			r.clock.tick(e)
			// Entries that were not void need no message before DedupFrom, unless it was purged before they arrived;
			// then they were decided without it.
			if e.LogEnd+1 >= first && !r.clock.isVoid(e) {
				for i := range e.Messages {
					if m := &e.Messages[i]; inWindow(e, m, p.Moves) {
						r.window.add(fingerprint(m.ID, m.Hash), e.Seq, e.LogEnd+1)
					}
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read recent requests: %w", err)
		}
	}
	r.stream, r.incarnation = p.StreamID, p.Incarnation()
	r.ends = append(r.ends[:0], Moment{Seq: p.Done, Reach: cmp.Or(r.clock.first, p.Done+1)})
	return nil
}

// remembers reports whether the clock covers everything since a block ended.
func (r *Requests) remembers(done uint64) bool {
	return slices.ContainsFunc(r.ends, func(end Moment) bool { return end.Seq == done && r.clock.first <= end.Reach })
}

// Tick adds the next message, unless an earlier session did.
func (r *Requests) Tick(e *flow.Entry) Moment {
	r.clock.tick(e)
	return r.clock.moment(e)
}

// IsVoid reports whether an added entry came too late.
func (r *Requests) IsVoid(e *flow.Entry) bool { return r.clock.isVoid(e) }

// Request is a request of an entry with records without a deduplication key.
type Request struct {
	requestID
	seq   uint64
	reach uint64 // first message within the window before it
	needs uint64 // first message needed to decide whether its entry is void
	index int    // of its first record in its entry
	row   int    // of its first record in its block
	rows  int
}

// requestID identifies a request, and the records of it that an entry has.
type requestID struct {
	source, subject, id, hash string

	from, to int // of the request's records in the lane
}

// same reports whether both are of one request.
func (r *requestID) same(as *requestID) bool {
	return r.id == as.id && r.hash == as.hash && r.source == as.source && r.subject == as.subject
}

// RequestOf is the request of a message of an entry, with its rows in a block; false if it needs no place in the window.
func RequestOf(e *flow.Entry, m *flow.Message, at Moment, row, rows int) (Request, bool) {
	if !inWindow(e, m, nil) {
		return Request{}, false
	}
	return Request{requestID: idOf(m), seq: m.Seq, reach: at.Reach, needs: e.LogEnd + 1, index: m.Index, row: row, rows: rows}, true
}

// inWindow reports whether a request of an entry that is not void needs a place in the window.
func inWindow(e *flow.Entry, m *flow.Message, moves []flow.Move) bool {
	_, moved := flow.MovedBy(moves, e, m)
	return len(e.Table) > 0 && !m.Identified && !moved
}

func idOf(m *flow.Message) requestID {
	return requestID{m.Source, m.Subject, m.ID, m.Hash, m.From, m.From + m.Records}
}

// Batch is the requests of a block.
type Batch struct {
	First    uint64 // its first message
	Requests []Request
	Columns  *record.Columns // its rows, before any is dropped
	Moves    []flow.Move     // move markers before it
}

// Repeated returns the rows without a deduplication key whose request is repeated, and adds the block's requests to the window, of
// at most this many bytes. Decided follows.
func (r *Requests) Repeated(ctx context.Context, b Batch, bytes int, heads Heads) (runs []flow.Run, err error) {
	r.window.limit = bytes
	for i := range b.Requests {
		one := &b.Requests[i]
		fp := fingerprint(one.id, one.hash)
		var before []requestID // the same request, perhaps with other records
		err := r.window.find(fp, one.reach, one.seq, func(seq uint64) (bool, error) {
			list, err := r.requestsOf(ctx, b, i, seq, heads)
			for _, other := range list {
				if other.same(&one.requestID) {
					before = append(before, other)
				}
			}
			return covered(before, one.from, one.to) == one.to, err
		})
		if err != nil {
			return nil, err
		}
		c := b.Columns
		for row := one.row; len(before) > 0 && row < one.row+one.rows; row++ {
			at := one.from + int(c.StreamIdx[row]) - one.index
			if c.Kind[row] == flow.ByPlace && covered(before, at, at+1) > at {
				runs = flow.AddRow(runs, row)
			}
		}
		if one.seq > r.window.last {
			r.window.add(fp, one.seq, one.needs)
		}
	}
	return runs, nil
}

// Decided drops what has left the window, after the block from message first to last was decided.
func (r *Requests) Decided(first uint64, last Moment) {
	r.window.expire(last)
	r.ends = slices.DeleteFunc(r.ends, func(end Moment) bool { return end.Seq >= first })
	r.ends = append(r.ends[max(0, len(r.ends)-1):], last)
}

// covered is the end of the longest range of records, beginning at from, that are all in the list; at most to.
func covered(list []requestID, from, to int) int {
	for moved := true; moved && from < to; {
		moved = false
		for _, r := range list {
			if r.from <= from && from < r.to {
				from, moved = r.to, true
			}
		}
	}
	return min(from, to)
}

// maxLooked bounds the cache of reread messages.
const maxLooked = 256

// requestsOf returns the requests of a message that need a place in the window: of a stored message all; of a message
// of the block those before its request i.
func (r *Requests) requestsOf(ctx context.Context, b Batch, i int, seq uint64, heads Heads) (list []requestID, err error) {
	if seq >= b.First {
		for i--; i >= 0 && b.Requests[i].seq >= seq; i-- {
			if b.Requests[i].seq == seq {
				list = append(list, b.Requests[i].requestID)
			}
		}
		return list, nil
	}
	if list, there := r.looked[seq]; there {
		return list, nil
	}
	err = heads(ctx, seq, seq, func(e *flow.Entry) error {
		for i := range e.Messages {
			if m := &e.Messages[i]; inWindow(e, m, b.Moves) {
				list = append(list, idOf(m))
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read message %d again to compare its requests: %w", seq, err)
	}
	if len(r.looked) >= maxLooked {
		clear(r.looked)
	}
	r.looked[seq] = list
	return list, nil
}

// Needed is the first message needed to rebuild the window, at most the one after a checkpoint.
func (r *Requests) Needed(done uint64) uint64 { return r.window.needed(done) }

// Reach is the covered stream time: less than the window if memory is exhausted.
func (r *Requests) Reach() time.Duration { return r.window.reach(r.clock.window) }

// Ledger decides like Requests which entries are void and which records without a deduplication key are repeated, for readers of a
// lane from its beginning: verify and rebuild. It keeps every request of the window.
type Ledger struct {
	clock clock
	moves []flow.Move
	known map[[16]byte][]place
	order []requestPlace
	whole bool // it has the lane from its first message on
}

type place struct {
	seq      uint64
	from, to int
}

type requestPlace struct {
	request [16]byte
	seq     uint64
}

// NewLedger makes a Ledger for a lane whose state lists these move markers.
func NewLedger(window time.Duration, moves []flow.Move) *Ledger {
	return &Ledger{clock: clock{window: window}, moves: moves, known: map[[16]byte][]place{}}
}

// Add adds the next message. void reports whether one of its requests is void; sentBefore, whether an earlier request
// had a record without deduplication key: surely, or perhaps, if the lane no longer holds the messages.
func (r *Ledger) Add(e *flow.Entry) (void func(*flow.Message) bool, sentBefore func(m *flow.Message, index int) (sure, perhaps bool)) {
	if c := &r.clock; e.Seq != c.first+uint64(len(c.times)) || c.first == 0 {
		r.whole = e.Seq == 1
	}
	r.clock.tick(e)
	for len(r.order) > 0 && r.order[0].seq < r.clock.first {
		first := r.order[0]
		if r.known[first.request] = r.known[first.request][1:]; len(r.known[first.request]) == 0 {
			delete(r.known, first.request)
		}
		r.order = r.order[1:]
	}
	before := make([][]place, len(e.Messages))
	if len(e.Table) > 0 {
		if r.clock.isVoid(e) {
			return func(*flow.Message) bool { return true }, nil
		}
		for i := range e.Messages {
			if m := &e.Messages[i]; inWindow(e, m, r.moves) {
				id := xxh3.HashString128(fmt.Sprintf("%q %q %q %q", m.Source, m.Subject, m.ID, m.Hash)).Bytes()
				before[i] = r.known[id]
				r.known[id] = append(r.known[id], place{e.Seq, m.From, m.From + m.Records})
				r.order = append(r.order, requestPlace{id, e.Seq})
			}
		}
	}
	early := !r.whole && r.clock.times[len(r.clock.times)-1] < r.clock.window
	void = func(m *flow.Message) bool {
		_, moved := flow.MovedBy(r.moves, e, m)
		return moved
	}
	return void, func(m *flow.Message, index int) (sure, perhaps bool) {
		if !inWindow(e, m, r.moves) {
			return false, false
		}
		at := m.From + index - m.Index
		for _, p := range before[m.Ordinal] {
			if p.from <= at && at < p.to {
				return true, true
			}
		}
		return false, early
	}
}
