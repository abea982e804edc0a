package flow

import (
	"errors"
	"fmt"
	"slices"
)

// Claim fixes a block before it is stored: after any crash the same rows of the same
// messages are inserted under the same tokens.
//
// Rows are numbered by month, then by place in the lane, before any is dropped. Pieces
// are contiguous and cover all rows from Settled on. A piece is one INSERT of rows of
// one month.
type Claim struct {
	First     uint64 `json:"first"`
	Last      uint64 `json:"last"`
	Stamp     int64  `json:"stamp,omitempty"`      // of message Last, as LaneState.Stamp
	Messages  string `json:"messages"`             // hash of the raw messages
	Counted   string `json:"counted"`              // hash of the row numbering: which records are rows, and their months
	Recounted bool   `json:"recounted,omitempty"`  // another version has renumbered the rows; Hash keeps the first numbering
	Hash      string `json:"hash"`                 // of both, and of the void requests and the dropped and forgotten rows
	Dropped   string `json:"dropped,omitempty"`    // deduplicated rows (FormatRuns): decided once, by this write
	Forgotten string `json:"forgotten,omitempty"`  // rows of forgotten instances (FormatRuns); undecodable records and messages are numbered after all rows, in order
	Void      string `json:"void,omitempty"`       // void requests (FormatRuns), numbered within the block: decided by this write
	StoredAt  int64  `json:"stored_at"`            // start of the rows' retention, ms since 1970; tokens do not cover it
	RenewedAt int64  `json:"renewed_at,omitempty"` // the first stored_at of a renewed claim: an earlier insert may carry it
	ClaimedAt int64  `json:"claimed_at"`           // ClickHouse's clock just before the claim, ms since 1970: no token of the block is older

	Earlier      []StoredDay `json:"earlier,omitempty"`       // rows stored so far with an earlier stored_at
	Settled      int         `json:"settled,omitempty"`       // rows before this one are stored or dead-lettered
	DeadLettered int         `json:"dead_lettered,omitempty"` // dead-lettered rows among the settled
	LastRow      uint64      `json:"last_row,omitempty"`      // the last message that left a row so far
	Cut          *Run        `json:"cut,omitempty"`           // the piece being cut: the first open piece carries its token
	Pieces       []Piece     `json:"pieces,omitempty"`        // in the order of their rows
}

// Piece is the rows of a claim from the end of the piece before to To-1.
type Piece struct {
	To     int        `json:"to"`
	State  PieceState `json:"state"`
	Reason string     `json:"reason,omitempty"` // of a dead piece: why ClickHouse rejects it
}

// PieceState is the progress of a piece.
type PieceState string

const (
	PieceOpen    PieceState = "open"    // to insert under its token; an earlier insert may have been sent
	PieceWaiting PieceState = "waiting" // never inserted under its own token
	PieceStored  PieceState = "stored"
	PieceDead    PieceState = "dead" // to dead-letter, once its token can no longer store it
)

const (
	// MaxPieces bounds the list of a claim.
	MaxPieces = 64

	// maxOpened bounds the list when waiting rows are opened. The rest is reserved for
	// cutting: a piece of a million rows is cut at most twenty times.
	maxOpened = 32
)

// Result is the result of an attempt at a piece.
type Result int

const (
	ResultNone         Result = iota // not tried, failed, or no answer
	ResultInserted                   // inserted; in a cut, only its rows of the piece being cut are visible
	ResultLandedLate                 // an earlier insert under the token of the piece being cut stored other rows of it
	ResultRejected                   // ClickHouse rejects its data; no row of the uncut piece is visible
	ResultTooLarge                   // over a memory or time limit; no row of the uncut piece is visible
	ResultMissing                    // inserted, but none of its rows is visible
	ResultOpened                     // a waiting piece is opened for insertion
	ResultDeadLettered               // its dead letters are durable
)

// Outcome is the result of one piece. The zero value is none.
type Outcome struct {
	Result Result
	Cut    int    // rejected or too large: the row at which the piece is cut; 0 when it has a single row
	Reason string // rejected: why
	Ends   []int  // opened: where its pieces end
	Rows   int    // dead-lettered: how many rows
	Landed Run    // landed late: the stored rows

	LastRow uint64 // inserted, landed late: the last message that left a row
	Earlier uint64 // inserted, landed late: rows with Claim.RenewedAt
}

// ErrMissing means that ClickHouse deduplicated a token whose rows are missing.
var ErrMissing = errors.New("it was deduplicated but has no rows: reset the deduplication window (docs/runbooks/lanes.md says how)")

// Equal reports whether both claims of a block have made the same progress.
func (c Claim) Equal(d Claim) bool {
	return c.Settled == d.Settled && slices.Equal(c.Pieces, d.Pieces) && (c.Cut == nil) == (d.Cut == nil) && (c.Cut == nil || *c.Cut == *d.Cut)
}

// Renewed is the claim with another stored_at. stored counts the rows stored so far,
// which may carry the old one.
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

// IsSettled reports whether every row is stored or dead-lettered.
func (c Claim) IsSettled() bool { return len(c.Pieces) == 0 }

// Piece is the rows of piece i.
func (c Claim) Piece(i int) Run {
	from := c.Settled
	if i > 0 {
		from = c.Pieces[i-1].To
	}
	return Run{from, c.Pieces[i].To}
}

// Uncut is the rows that the token of piece i was made for: the piece, or the piece
// being cut if i is its first open part.
func (c Claim) Uncut(i int) Run {
	if c.Cut != nil && i == c.FirstOpen() {
		return *c.Cut
	}
	return c.Piece(i)
}

// FirstOpen is the first piece to insert, -1 if none.
func (c Claim) FirstOpen() int {
	return slices.IndexFunc(c.Pieces, func(p Piece) bool { return p.State == PieceOpen })
}

// InCut reports whether piece i is a part of the piece being cut.
func (c Claim) InCut(i int) bool {
	return c.Cut != nil && c.Piece(i).From >= c.Cut.From && c.Pieces[i].To <= c.Cut.To
}

// Token identifies an insert of piece i: always the same for the same rows of the same
// messages and incarnation. Two inserts share one only while a piece is cut, or after
// another version renumbered the rows. It names only the first row, since the part that
// keeps the token begins where the piece does.
func (c Claim) Token(lane int, incarnation uint64, i int) string {
	return fmt.Sprintf("%s%d:%d-%d:%s#%d", TokensOf(lane), incarnation, c.First, c.Last, c.Hash, c.Uncut(i).From)
}

// TokensOf is how all tokens of a lane begin.
func TokensOf(lane int) string { return fmt.Sprintf("FLOW_%d@", lane) }

// Next is the claim after one outcome per piece. Leading settled pieces become one
// number.
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
// = is unchanged; – is an error, and so is "missing" in every state.
//
//  1. The first part keeps the token of the piece. So it excludes any earlier insert of
//     the whole piece, or of a larger first part: exactly one is stored, whenever it
//     arrives. The other parts wait for the result.
//  2. The token is spent and the cut ends. If an earlier insert landed late, its rows
//     are stored, dead parts included; the others wait to be opened.
//  3. Without a next part the cut ends, and no insert spends the token.
//  4. Open after the outcome that ends the cut.
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

// piece adds piece i of the claim before, after its outcome.
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
				return fmt.Errorf("a piece ends at row %d, outside its rows", end)
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

// compact merges adjacent dead pieces, with the reason of the first.
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

// add appends a piece. A leading stored piece is settled.
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
