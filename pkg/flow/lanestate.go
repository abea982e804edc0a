package flow

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// LaneState is the checkpoint of a lane and the claim of the block being stored. The
// stream keeps it; it changes only by compare-and-swap on Revision. The checkpoint of
// changes is a lane state without claim and totals.
type LaneState struct {
	Owner        string        `json:"owner"`                  // instance that may move the checkpoint; empty: none
	Incarnations []Incarnation `json:"incarnations,omitempty"` // oldest first; empty before the first write
	StreamID     string        `json:"stream_id,omitempty"`    // the stream that Done counts in, name@creation time: a recreated one restarts at 1
	Done         uint64        `json:"done"`                   // every message up to here is stored or dead-lettered
	Stamp        int64         `json:"stamp,omitempty"`        // when the stream stored message Done, ns since 1970: another message of this sequence has another; 0: unknown
	BaseStamp    int64         `json:"base_stamp,omitempty"`   // of message Base, as Stamp
	LastRow      uint64        `json:"last_row,omitempty"`     // the last message of the current incarnation up to Done that left a row: the table must reach it
	DedupFrom    uint64        `json:"dedup_from,omitempty"`   // a takeover fills the deduplication window from here; purges keep it; 0 before the first write
	VoidThrough  uint64        `json:"void_through,omitempty"` // entries with a LogEnd up to this are void
	Moves        []Move        `json:"moves,omitempty"`        // the move markers up to Done, in order
	Claim        *Claim        `json:"claim,omitempty"`        // the block being stored; nil: none
	Totals       Totals        `json:"totals"`                 // of the messages of the current incarnation up to Done
	StoredDays   []StoredDay   `json:"stored_days,omitempty"`  // the rows in Totals by their stored day, in the order of their messages
	Recount      []Doubt       `json:"recount,omitempty"`      // days whose counters may be wrong: unknown whether views received a piece
	Hold         *Hold         `json:"hold,omitempty"`         // no new claims meanwhile; nil: not held
	Reset        bool          `json:"reset,omitempty"`        // set by Behind: the ingester that resumes first compares Incarnations with the table
	Forget       string        `json:"forget,omitempty"`       // the last order to forget that the owner must have read
	Revision     uint64        `json:"-"`                      // of the entry this was read from; 0 before the first write
}

// Incarnation begins with the creation of a stream, a restore, or a reset. A message
// keeps the incarnation in which it was appended.
type Incarnation struct {
	ID    uint64 `json:"id"`    // a time in ms, above every earlier one
	First uint64 `json:"first"` // its first message
}

// Move is a move marker: after message Seq of the lane, a request of the source that was
// routed by a list older than this revision is void.
type Move struct {
	Source   string `json:"source"`
	Revision uint64 `json:"revision"`
	Seq      uint64 `json:"seq"`
}

// MovedBy is the move marker behind which a request of an entry was routed by an older list, if
// any. The request is void if its api may not have known: its source had left the lane, so other
// lanes may have stored its records. If its api had seen the lane's end behind the marker, the
// list was set back, and the request is acknowledged. Changes and markers have no routing
// revision and are never void by one.
func MovedBy(moves []Move, e *Entry, m *Message) (behind Move, void bool) {
	for _, move := range moves {
		if move.Source == m.Source && move.Seq < m.Seq && m.Revision < move.Revision && m.Revision > 0 {
			if behind = move; e.LogEnd < move.Seq {
				return move, true
			}
		}
	}
	return behind, false
}

// maxMoves bounds the move markers of a lane state. Beyond it, those that a later marker
// of the same source follows are dropped first: only a reader of the messages between
// the two would need them.
const maxMoves = 256

// AddMoves adds move markers, which follow all others.
func AddMoves(moves, more []Move) []Move {
	if len(more) == 0 {
		return moves
	}
	all := append(slices.Clone(moves), more...)
	for i := 0; i < len(all) && len(all) > maxMoves; i++ {
		if slices.ContainsFunc(all[i+1:], func(m Move) bool { return m.Source == all[i].Source && m.Revision >= all[i].Revision }) {
			all = slices.Delete(all, i, i+1)
			i--
		}
	}
	return all
}

// Totals is the outcome counts of the records of a lane:
// Read = Stored + Deduplicated + DeadLettered + Forgotten + Void.
type Totals struct {
	Read         uint64 `json:"read,omitempty"`
	Stored       uint64 `json:"stored,omitempty"`
	Deduplicated uint64 `json:"deduplicated,omitempty"`
	DeadLettered uint64 `json:"dead_lettered,omitempty"`
	Forgotten    uint64 `json:"forgotten,omitempty"` // of forgotten instances
	Void         uint64 `json:"void,omitempty"`      // of void requests
}

func (t Totals) Sum() uint64 {
	return t.Stored + t.Deduplicated + t.DeadLettered + t.Forgotten + t.Void
}

// Add adds more counts.
func (t *Totals) Add(more Totals) {
	t.Read += more.Read
	t.Stored += more.Stored
	t.Deduplicated += more.Deduplicated
	t.DeadLettered += more.DeadLettered
	t.Forgotten += more.Forgotten
	t.Void += more.Void
}

// Hold keeps a lane between two blocks: the open claim is stored, and none follows. It
// is a request, not a lock: it expires if its operator does not return, so an operation
// under it must compare the lane state's revision again.
type Hold struct {
	By    string `json:"by"`    // name of the operator or command that holds the lane
	Until int64  `json:"until"` // ms since 1970
}

func (s LaneState) Held(now time.Time) bool { return s.Hold != nil && now.UnixMilli() < s.Hold.Until }

// Incarnation is the current one, 0 before the first write.
func (s LaneState) Incarnation() uint64 {
	if n := len(s.Incarnations); n > 0 {
		return s.Incarnations[n-1].ID
	}
	return 0
}

// IncarnationOf is the incarnation of a message: the last that begins at or before it.
// 0 when the state lists none.
func (s LaneState) IncarnationOf(seq uint64) uint64 {
	for _, in := range slices.Backward(s.Incarnations) {
		if in.First <= seq {
			return in.ID
		}
	}
	return 0
}

// Base is the last message before the current incarnation. Messages up to it are not in
// Totals. If they are after Done, they may have been stored before the reset or restore:
// records identified by place are looked up.
func (s LaneState) Base() uint64 {
	if n := len(s.Incarnations); n > 0 {
		return s.Incarnations[n-1].First - 1
	}
	return 0
}

// WithIncarnation is the state with one more incarnation, from a message on.
func (s LaneState) WithIncarnation(id, first uint64) LaneState {
	s.Incarnations = append(slices.Clone(s.Incarnations), Incarnation{id, first})
	return s
}

// Behind is the state of a reset or restored lane: messages up to last are unchanged,
// later ones belong to a new incarnation id. Progress up to last is kept; without a
// checkpoint, or where messages are gone, it is up to first-1, first being the lane's
// first message. A claim is kept whole or dropped. Stamp is 0 if Done changes.
func (s LaneState) Behind(last, first, id uint64) LaneState {
	done := min(s.Done, last)
	if s.DedupFrom == 0 || done < s.Done { // unknown, or of a window that ends later
		s.DedupFrom, s.VoidThrough = first, 0
	}
	next := LaneState{
		Incarnations: s.Incarnations, StreamID: s.StreamID, Done: max(done, first-1),
		Recount: s.Recount, Reset: true, Forget: s.Forget, Revision: s.Revision,
	}
	if next.Done == s.Done {
		next.Stamp = s.Stamp
		if s.Claim != nil && s.Claim.Last <= last {
			next.Claim = s.Claim
		}
	}
	next.DedupFrom, next.VoidThrough = s.DedupFrom, s.VoidThrough
	for _, move := range s.Moves { // later ones are read again, or gone
		if move.Seq <= next.Done {
			next.Moves = append(next.Moves, move)
		}
	}
	return next.WithIncarnation(id, last+1)
}

// Check refuses a state whose claim does not follow its checkpoint. Every reader that
// resumes from the state calls it.
func (s LaneState) Check() error {
	if s.Claim != nil && s.Claim.First != s.Done+1 {
		return fmt.Errorf("the lane state is corrupt: claim %s does not follow message %d", s.Claim, s.Done)
	}
	return nil
}

// Apply records a settled claim as done: the outcome counts of its records, and the last
// message that left a row.
func (s LaneState) Apply(c Claim, became Totals, lastRow uint64) (LaneState, error) {
	s.Claim = &c
	if err := s.Check(); err != nil {
		return s, err
	}
	s.Done, s.Stamp, s.Claim = c.Last, c.Stamp, nil
	if c.Last <= s.Base() {
		return s, nil // of an incarnation before
	}
	s.LastRow = max(s.LastRow, lastRow)
	s.Totals.Add(became)
	s.StoredDays = slices.Clone(s.StoredDays)
	left := became.Stored
	for _, day := range c.Earlier {
		s.addStored(StoredDay{day.Day, day.Rows, c.Last})
		left -= day.Rows
	}
	s.addStored(StoredDay{UTCDay(c.StoredAt), left, c.Last})
	return s, nil
}

// InDoubt is the state with more days to recount.
func (s LaneState) InDoubt(days []Doubt) LaneState {
	if len(days) > 0 {
		all := append(slices.Clone(s.Recount), days...)
		slices.SortFunc(all, func(a, b Doubt) int {
			return cmp.Or(strings.Compare(a.Day, b.Day), strings.Compare(a.Stored, b.Stored))
		})
		s.Recount = slices.Compact(all)
	}
	return s
}

// Dead is a record, or a whole message, that cannot be stored.
type Dead struct {
	Message Message // where it came from; Body is the bytes that cannot be stored
	Index   int     // of the record within the message, -1 for the whole message
	Code    string  // stable, machine-readable
	Reason  string  // a sentence; never a submitted value
}

// MaxStep bounds what one message adds to stream time.
const MaxStep = 30 * time.Second

// Step is the stream time between two neighbouring messages of a lane, by their stored
// times: 0 to 30 s, so that no clock change, failover, or outage ages a retry out.
func Step(before, after time.Time) time.Duration {
	return min(max(after.Sub(before), 0), MaxStep)
}
