package flow

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Position is where a lane stands: what is stored, and what is being stored.
// It is kept by the stream, changed only by compare-and-swap on Revision.
type Position struct {
	Owner       string   `json:"owner"`                 // instance that may move the lane, empty when none does
	Incarnation uint64   `json:"incarnation,omitempty"` // life of the lane: a time in ms above that of every life before it; 0 before the first write
	Stream      string   `json:"stream,omitempty"`      // the stream Done counts in, name @ time of creation: another one starts again at 1
	Done        uint64   `json:"done"`                  // every message up to here is stored or set aside
	Stamp       int64    `json:"stamp,omitempty"`       // when the stream took message Done, ns since 1970, as the stream itself says: another message of this number has another; 0 when not known
	Base        uint64   `json:"base,omitempty"`        // messages up to here are of an earlier life of the lane, or were given up: they are not in Totals
	Stored      uint64   `json:"stored,omitempty"`      // the last message that left a row, of those up to Done and of the pieces of Claim that are stored: the table must reach it
	Claim       *Claim   `json:"block,omitempty"`       // the block being stored now, nil when none
	Window      uint64   `json:"window,omitempty"`      // messages from here on tell which requests are repeated, and are kept; 0 before the first write
	Void        uint64   `json:"void,omitempty"`        // an entry whose api knew no message behind this one is void
	Totals      Totals   `json:"totals"`                // what became of all records up to Done, and of those of Claim that come before From
	Recount     []string `json:"recount,omitempty"`     // days, such as 2025-11-21, whose counters may be wrong: what they had heard of a block was not to be found out
	Hold        *Hold    `json:"hold,omitempty"`        // nothing new is claimed meanwhile, nil when the lane is not held
	Revision    uint64   `json:"-"`                     // of the entry this was read from; 0 before the first write
}

// Totals is what became of the records of a lane, over all of its messages up
// to a position: Read = Stored + Repeated + Dead + Void.
type Totals struct {
	Read     uint64 `json:"read,omitempty"`
	Stored   uint64 `json:"stored,omitempty"`
	Repeated uint64 `json:"repeated,omitempty"` // known already
	Dead     uint64 `json:"dead,omitempty"`     // set aside
	Void     uint64 `json:"void,omitempty"`     // of messages that count for nothing
}

// Hold keeps a lane between two blocks: what is claimed is stored, and nothing
// new is claimed. It is a request, not a lock: it ends by itself when the
// operator who wrote it does not come back, and what rests on it must look at the revision
// of the position again.
type Hold struct {
	By    string `json:"by"`    // name of the operator or command that holds the lane
	Until int64  `json:"until"` // ms since 1970
}

// Held tells whether the lane is held.
func (p Position) Held(now time.Time) bool { return p.Hold != nil && now.UnixMilli() < p.Hold.Until }

// Add adds what became of more records.
func (t *Totals) Add(more Totals) {
	t.Read += more.Read
	t.Stored += more.Stored
	t.Repeated += more.Repeated
	t.Dead += more.Dead
	t.Void += more.Void
}

// Claim fixes a block before it is stored, so that after any crash the same
// messages are stored again under the same token.
type Claim struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	Stamp int64  `json:"stamp,omitempty"` // of message Last, as Position.Stamp
	Token string `json:"token"`

	// Rows of the block that are known already and are not stored, as
	// FormatRuns writes them: decided once, before the claim is written.
	Dropped string `json:"dropped,omitempty"`

	// Messages that count for nothing, as FormatRuns writes them, counted from
	// First: decided with the same write.
	Void string `json:"void,omitempty"`

	At int64 `json:"at,omitempty"` // when the claim was made, or the first of the block when its pieces are inserted at once, ms since 1970

	// A block the warehouse refuses for its data is stored piece by piece, and so
	// is one of many months, and one whose pieces were inserted at once and failed.
	// Then the claim is one of the pieces, with a token of its own: the rows
	// From to To-1 of the block, counted without those that are dropped. Those
	// before From are stored or set aside.
	From int    `json:"from,omitempty"`
	To   int    `json:"to,omitempty"`   // 0 when the claim is the whole block
	Dead string `json:"dead,omitempty"` // why the row From is being set aside instead of stored

	Refused int `json:"refused,omitempty"` // rows of the block that were set aside so, with From if Dead says so
}

func (c Claim) String() string { return fmt.Sprintf("%d-%d", c.First, c.Last) }

// Dead is a record, or a whole message, that cannot be stored.
type Dead struct {
	Message Message // where it came from; Body is the bytes set aside
	Index   int     // index of the record within the message, -1 for the whole message
	Code    string  // stable, machine-readable
	Reason  string  // a sentence; never a submitted value
}

// longestStep bounds what one message adds to stream time.
const longestStep = 30 * time.Second

// Step is the stream time between two neighbouring messages of a lane, by when
// the lane has stored them. A clock that is set, another server's clock and an
// outage count for 30 s at most, and never backwards: so that none of them makes
// a request forgotten that is being repeated.
func Step(before, after time.Time) time.Duration {
	return min(max(after.Sub(before), 0), longestStep)
}

// Run is a run of rows of a block, To excluded.
type Run struct{ From, To int }

// FormatRuns writes runs, which are in order and do not touch, as a claim keeps
// them: empty for none.
func FormatRuns(runs []Run) string {
	var b []byte
	last := 0
	for _, r := range runs {
		b = binary.AppendUvarint(b, uint64(r.From-last))
		b = binary.AppendUvarint(b, uint64(r.To-r.From))
		last = r.To
	}
	return base64.RawStdEncoding.EncodeToString(b)
}

// ParseRuns reads what FormatRuns has written.
func ParseRuns(text string) ([]Run, error) {
	b, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("read the rows that are dropped: %w", err)
	}
	var runs []Run
	next := func(most int) int {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > uint64(most) {
			err = errors.New("read the rows that are dropped: they are damaged")
			b = nil
			return 0
		}
		b = b[n:]
		return int(v)
	}
	for last := 0; len(b) > 0; {
		from := last + next(maxRows-last)
		last = from + next(maxRows-from)
		if err == nil && last == from {
			err = errors.New("read the rows that are dropped: a run is empty")
		}
		if err != nil {
			return nil, err
		}
		runs = append(runs, Run{from, last})
	}
	return runs, nil
}

// maxRows is more than any block has.
const maxRows = 1 << 30
