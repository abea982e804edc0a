package flow

import (
	"errors"
	"fmt"
	"slices"
)

// Claim fixes a block before it is stored, so that after any crash the same rows
// of the same messages are inserted under the same tokens.
//
// Rows are numbered by month, then by their place in the lane, before any is
// dropped. Pieces follow each other and cover all rows from Settled on. A piece
// is one INSERT of rows of one month.
type Claim struct {
	First     uint64 `json:"first"`
	Last      uint64 `json:"last"`
	Stamp     int64  `json:"stamp,omitempty"`      // of message Last, as LaneState.Stamp
	Messages  string `json:"messages"`             // hash of the raw messages
	Counted   string `json:"counted"`              // hash of how the rows are numbered: which records are rows, and of which month
	Recounted bool   `json:"recounted,omitempty"`  // another version has numbered the rows since; Hash is that of the first count
	Hash      string `json:"hash"`                 // of both, and of the void requests and the dropped and forgotten rows
	Dropped   string `json:"dropped,omitempty"`    // rows that are known already, as FormatRuns writes them: decided once, with this write
	Forgotten string `json:"forgotten,omitempty"`  // rows of forgotten instances, likewise; behind all rows follow the records and messages that cannot be decoded, in their order
	Void      string `json:"void,omitempty"`       // requests that count for nothing, as FormatRuns writes them, by their place among those of the block: decided with this write
	StoredAt  int64  `json:"stored_at"`            // from when the retention of the rows counts, ms since 1970; tokens do not cover it
	RenewedAt int64  `json:"renewed_at,omitempty"` // the first stored_at of a claim that got another one: an earlier insert carries it
	ClaimedAt int64  `json:"claimed_at"`           // ClickHouse's clock just before the claim, ms since 1970: no token of the block is older

	Earlier      []StoredDay `json:"earlier,omitempty"`       // rows stored so far that carry a stored_at before this one
	Settled      int         `json:"settled,omitempty"`       // rows before this one are stored or dead-lettered
	DeadLettered int         `json:"dead_lettered,omitempty"` // rows among those that are dead-lettered
	LastRow      uint64      `json:"last_row,omitempty"`      // the last message that left a row so far
	Cut          *Run        `json:"cut,omitempty"`           // the piece that is being cut: its token is carried by the first open piece
	Pieces       []Piece     `json:"pieces,omitempty"`        // in the order of their rows
}

// Piece is the rows of a claim from the end of the piece before to To-1.
type Piece struct {
	To     int        `json:"to"`
	State  PieceState `json:"state"`
	Reason string     `json:"reason,omitempty"` // of a dead piece: why ClickHouse rejects it
}

// PieceState is what may be done with a piece.
type PieceState string

// States of pieces.
const (
	PieceOpen    PieceState = "open"    // it is inserted under its token, maybe not for the first time
	PieceWaiting PieceState = "waiting" // nothing of it was ever inserted under a token of its own
	PieceStored  PieceState = "stored"
	PieceDead    PieceState = "dead" // it is dead-lettered instead, once its token cannot store it any more
)

const (
	// MaxPieces bounds the list of a claim.
	MaxPieces = 64

	// maxOpened bounds the list when waiting rows are opened. What is left is for
	// cutting: a piece of a million rows is cut twenty times at most.
	maxOpened = 32
)

// Result is what came of a piece.
type Result int

// Results.
const (
	ResultNone         Result = iota // not tried, failed, or no answer
	ResultInserted                   // inserted; where it was counted, its rows are visible and no others of the piece that is being cut
	ResultLandedLate                 // an earlier insert under the token of the piece that is cut has stored other rows of it
	ResultRejected                   // ClickHouse rejects its data, and none of the uncut piece is visible
	ResultTooLarge                   // it takes too much memory or time, and none of the uncut piece is visible
	ResultMissing                    // inserted, and none of it is visible
	ResultOpened                     // a waiting piece is to be inserted next
	ResultDeadLettered               // its dead letters are written
)

// Outcome is the result of one piece. The zero value is none.
type Outcome struct {
	Result Result
	Cut    int    // rejected or too large: the row at which the piece is cut; 0 when it has a single row
	Reason string // rejected: why
	Ends   []int  // opened: where its pieces end
	Rows   int    // dead-lettered: how many rows
	Landed Run    // landed late: the rows that are stored

	LastRow uint64 // inserted, landed late: the last message that left a row
	Earlier uint64 // inserted, landed late: rows of these that carry Claim.RenewedAt
}

// ErrMissing says that a token is known to the table, and its rows are not there.
var ErrMissing = errors.New("it was deduplicated but has no rows: reset the deduplication window (docs/runbooks/lanes.md says how)")

// Equal tells whether nothing has become of either claim of a block that has not
// become of the other.
func (c Claim) Equal(d Claim) bool {
	return c.Settled == d.Settled && slices.Equal(c.Pieces, d.Pieces) && (c.Cut == nil) == (d.Cut == nil) && (c.Cut == nil || *c.Cut == *d.Cut)
}

// Renewed is the claim with another stored_at, when so many rows are stored by now.
// Rows that an insert has brought before may carry the one it had.
func (c Claim) Renewed(storedAt int64, stored uint64) Claim {
	for _, day := range c.Earlier {
		stored -= day.Rows
	}
	c.Earlier = addEarlier(c.Earlier, UTCDay(c.StoredAt), stored)
	if c.RenewedAt == 0 {
		c.RenewedAt = c.StoredAt
	}
	c.StoredAt = storedAt
	return c
}

// addEarlier adds rows that were stored on a day.
func addEarlier(all []StoredDay, day string, rows uint64) []StoredDay {
	if rows == 0 {
		return all
	}
	all = slices.Clone(all)
	if i := slices.IndexFunc(all, func(d StoredDay) bool { return d.Day == day }); i >= 0 {
		all[i].Rows += rows
		return all
	}
	return append(all, StoredDay{Day: day, Rows: rows})
}

func (c Claim) String() string { return fmt.Sprintf("%d-%d", c.First, c.Last) }

// IsSettled tells whether every row is stored or dead-lettered.
func (c Claim) IsSettled() bool { return len(c.Pieces) == 0 }

// Piece is the rows of piece i.
func (c Claim) Piece(i int) Run {
	from := c.Settled
	if i > 0 {
		from = c.Pieces[i-1].To
	}
	return Run{from, c.Pieces[i].To}
}

// Uncut is the rows that the token of piece i was made for: those of the piece,
// or of the piece that is being cut, whose token its first open part carries.
func (c Claim) Uncut(i int) Run {
	if c.Cut != nil && i == c.FirstOpen() {
		return *c.Cut
	}
	return c.Piece(i)
}

// FirstOpen is the first piece to be inserted, -1 when there is none.
func (c Claim) FirstOpen() int {
	return slices.IndexFunc(c.Pieces, func(p Piece) bool { return p.State == PieceOpen })
}

// InCut tells whether piece i is a part of the piece that is being cut.
func (c Claim) InCut(i int) bool {
	return c.Cut != nil && c.Piece(i).From >= c.Cut.From && c.Pieces[i].To <= c.Cut.To
}

// Token names what is inserted of piece i: the same for the same rows of the same
// messages in an incarnation of a lane, and never for others, except while a
// piece is cut, or when another version has counted its rows. It names the first row
// alone: a part that keeps the token of its piece begins where the piece does.
func (c Claim) Token(lane int, incarnation uint64, i int) string {
	return fmt.Sprintf("FLOW_%d@%d:%d-%d:%s#%d", lane, incarnation, c.First, c.Last, c.Hash, c.Uncut(i).From)
}

// Next is the claim after the outcomes of its pieces, one for each. Settled pieces
// in front become one number.
//
//	state \ outcome     none  inserted    landed late   rejected, too large              opened  dead-lettered
//	open                =     stored      –             first: cut; others: =            –       –
//	  one row           =     stored      –             first, rejected: dead; else =    –       –
//	open, in a cut (1)  =     stored (2)  stored (2)    cut again                        –       –
//	  one row           =     stored (2)  stored (2)    rejected: dead, and its token
//	                                                    passes to the next part (3)      –       –
//	waiting, in a cut   =     –           –             –                                = (4)    –
//	waiting             =     –           –             –                                open    –
//	dead, in a cut      =     –           –             –                                –       –
//	dead                =     –           –             –                                –       settled
//	stored              =     –           –             –                                –       –
//
// = stays as it is; – is an error, and "missing" (a token whose rows are not
// there) is one for every state.
//
//  1. The first part keeps the token of the piece, so that an earlier insert of
//     the whole piece, or of what was its first part before, and the insert of
//     the part exclude each other: exactly one of them is stored, whenever it
//     arrives. The other parts wait until it is known which.
//  2. The token is spent: the cut is over. If an earlier insert has landed late,
//     its rows are stored, those of dead parts among them, and the others wait to
//     be opened.
//  3. Without a next part the cut is over. Nothing spends its token then.
//  4. Open with the outcome that ends the cut.
func (c Claim) Next(outcomes []Outcome) (Claim, error) {
	if len(outcomes) != len(c.Pieces) {
		return c, fmt.Errorf("claim %s: %d outcomes of %d pieces", c, len(outcomes), len(c.Pieces))
	}
	next, first := c, c.FirstOpen()
	next.Pieces = make([]Piece, 0, len(c.Pieces)+1)
	var pass bool  // the token passes to the next part
	var landed Run // rows that were stored by an earlier insert
	if c.Cut != nil && first >= 0 {
		switch o := outcomes[first]; {
		case o.Result == ResultInserted:
			next.Cut = nil
		case o.Result == ResultLandedLate:
			if landed = o.Landed; landed.From >= landed.To || landed.From < c.Cut.From || landed.To > c.Cut.To {
				return c, fmt.Errorf("claim %s: rows %d to %d landed late", c, landed.From, landed.To)
			}
			next.Cut = nil
		case o.Result == ResultRejected && o.Cut == 0:
			if pass = c.Pieces[first].To < c.Cut.To; !pass {
				next.Cut = nil
			}
		}
	}
	for i, p := range c.Pieces {
		next.LastRow = max(next.LastRow, outcomes[i].LastRow)
		next.Earlier = addEarlier(next.Earlier, UTCDay(c.RenewedAt), outcomes[i].Earlier)
		switch from := c.Piece(i).From; {
		case landed.From <= from && p.To <= landed.To:
			next.add(Piece{To: p.To, State: PieceStored})
			continue
		case landed.From < p.To && from < landed.To:
			return c, fmt.Errorf("claim %s: a part of rows %d to %d landed late", c, from, p.To)
		case i == first && outcomes[i].Result == ResultLandedLate && c.Cut != nil:
			next.add(Piece{To: p.To, State: PieceWaiting})
			continue
		case pass && p.State == PieceWaiting:
			next.add(Piece{To: p.To, State: PieceOpen})
			pass = false
			continue
		}
		if err := next.piece(c, i, p, outcomes[i], i == first); err != nil {
			return c, fmt.Errorf("claim %s, rows %d to %d, %s: %w", c, c.Piece(i).From, p.To, p.State, err)
		}
	}
	if len(next.Pieces) > MaxPieces {
		next.compact()
	}
	if len(next.Pieces) > MaxPieces {
		return c, fmt.Errorf("claim %s: more than %d pieces", c, MaxPieces)
	}
	return next, nil
}

// piece adds what becomes of piece i of the claim before.
func (c *Claim) piece(before Claim, i int, p Piece, o Outcome, first bool) error {
	from := before.Piece(i).From
	inCut := c.Cut != nil && before.InCut(i)
	switch {
	case o.Result == ResultNone:
		c.add(p)
	case o.Result == ResultMissing:
		return ErrMissing
	case p.State == PieceOpen && o.Result == ResultInserted:
		c.add(Piece{To: p.To, State: PieceStored})
	case p.State == PieceOpen && (o.Result == ResultRejected || o.Result == ResultTooLarge):
		switch {
		case !first || o.Cut == 0 && o.Result == ResultTooLarge:
			c.add(p)
		case o.Cut == 0:
			c.add(Piece{To: p.To, State: PieceDead, Reason: o.Reason})
		case o.Cut <= from || o.Cut >= p.To:
			return fmt.Errorf("cut at row %d", o.Cut)
		default:
			if c.Cut == nil {
				c.Cut = &Run{from, p.To}
			}
			c.add(Piece{To: o.Cut, State: PieceOpen})
			c.add(Piece{To: p.To, State: PieceWaiting})
		}
	case p.State == PieceWaiting && o.Result == ResultOpened && inCut:
		c.add(p)
	case p.State == PieceWaiting && o.Result == ResultOpened:
		behind := len(before.Pieces) - i
		for _, end := range o.Ends {
			if end <= from || end > p.To {
				return fmt.Errorf("a piece that ends at row %d", end)
			}
			if len(c.Pieces)+behind >= maxOpened && c.FirstOpen() >= 0 {
				break
			}
			c.add(Piece{To: end, State: PieceOpen})
			from = end
		}
		if from < p.To {
			c.add(Piece{To: p.To, State: PieceWaiting})
		}
	case p.State == PieceDead && o.Result == ResultDeadLettered && !inCut && len(c.Pieces) == 0:
		c.Settled, c.DeadLettered = p.To, c.DeadLettered+o.Rows
	default:
		return fmt.Errorf("outcome %d", o.Result)
	}
	return nil
}

// compact makes neighbouring dead pieces one, for the reason of the first.
func (c *Claim) compact() {
	all := c.Pieces
	c.Pieces = nil
	for _, p := range all {
		if n := len(c.Pieces); n > 0 && p.State == PieceDead && c.Pieces[n-1].State == PieceDead {
			p.Reason = c.Pieces[n-1].Reason
			c.Pieces[n-1] = p
		} else {
			c.Pieces = append(c.Pieces, p)
		}
	}
}

// add adds a piece behind the others. Stored pieces in front are settled.
func (c *Claim) add(p Piece) {
	n := len(c.Pieces)
	switch {
	case n == 0 && p.State == PieceStored:
		c.Settled = p.To
	case n > 0 && p.State == PieceStored && c.Pieces[n-1].State == PieceStored:
		c.Pieces[n-1].To = p.To
	default:
		c.Pieces = append(c.Pieces, p)
	}
}
