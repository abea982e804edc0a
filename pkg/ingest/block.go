package ingest

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/zeebo/xxh3"

	"sluice/pkg/flow"
	"sluice/pkg/ingest/dedup"
	"sluice/pkg/record"
)

// arrival is a request with rows in the block.
type arrival struct {
	received time.Time
	records  int
}

// block is a run of messages of one lane on its way to the warehouse. fill owns it until it is passed
// to store, and store until it returns it; two blocks alternate.
type block struct {
	first uint64       // sequence of the first message; 0: none
	end   dedup.Moment // the last message, with its stream time
	hash  *xxh3.Hasher // of the raw messages
	born  time.Time    // when the first message was added

	columns  record.Columns
	months   []month        // of the rows
	dropped  []flow.Run     // dropped rows, by number: deduplicated or forgotten
	forget   record.Forgets // orders read by the session
	skipped  []flow.Run     // rows of forgotten instances, by place
	dead     []flow.Dead    // undecodable records and messages
	changes  []flow.Message // in order
	moves    []flow.Move    // move markers behind which older lists routed its requests, and its own
	requests []dedup.Request
	places   int        // number of its requests, changes, and move markers
	voids    []flow.Run // void requests
	extra    int        // bytes of dead, changes and requests

	arrivals []arrival
	totals   flow.Totals // outcome counts before the insert
	full     bool        // no more fits, and more is waiting
	turn     bool        // the lane's turn is taken for it
}

// month is a month and its number of rows.
type month struct {
	number   int   // such as 202511
	from, to int64 // ms since 1970, to exclusive
	rows     int
}

const (
	// maxMonths ends a block: each month is a piece of its claim.
	maxMonths = 24

	// maxPlaces ends a block, which bounds the void requests of its claim.
	maxPlaces = 1 << 18
)

func newBlock() *block { return &block{hash: xxh3.New()} }

func (b *block) reset() {
	b.first, b.end, b.extra, b.full, b.turn, b.totals = 0, dedup.Moment{}, 0, false, false, flow.Totals{}
	b.places = 0
	b.hash.Reset()
	b.columns.Reset()
	clear(b.dead) // release the messages
	clear(b.changes)
	clear(b.requests)
	clear(b.arrivals)
	b.dead, b.changes, b.arrivals, b.moves = b.dead[:0], b.changes[:0], b.arrivals[:0], b.moves[:0]
	b.requests, b.voids, b.months = b.requests[:0], b.voids[:0], b.months[:0]
	b.dropped, b.skipped = nil, nil
}

// shrink frees the memory of an empty block that far exceeds its limit: huge records grow single columns, and the limit
// falls as the process takes more lanes.
func (b *block) shrink(enough int) {
	const spare = 8 << 20 // for messages beyond the limit
	if b.columns.Held() > enough+spare {
		b.columns = record.Columns{}
		b.columns.Reset()
	}
}

func (b *block) empty() bool { return b.first == 0 }

func (b *block) bytes() int { return b.columns.Bytes() + b.extra }

// ended reports whether the block is closed: by a move marker, or by the maximum of months or requests of a claim.
func (b *block) ended() bool {
	return !b.empty() && (len(b.moved()) > 0 || len(b.months) > maxMonths || b.places >= maxPlaces)
}

// moved is the block's own move markers: their sources may have been on other lanes before.
func (b *block) moved() []flow.Move {
	own := slices.IndexFunc(b.moves, func(m flow.Move) bool { return m.Seq >= b.first })
	if own < 0 {
		return nil
	}
	return b.moves[own:]
}

// decided numbers the rows, drops the deduplicated ones at these places, and returns the claim of the block, without
// times and pieces.
func (b *block) decided(places []flow.Run) flow.Claim {
	c := flow.Claim{First: b.first, Last: b.end.Seq, Stamp: b.end.Stamp, Messages: b.messages(), Counted: b.counted(), Void: flow.FormatRuns(b.voids)}
	numbers := b.number(places, b.skipped)
	known, forgotten := numbers[0], b.forgotten(numbers[1])
	c.Dropped, c.Forgotten = flow.FormatRuns(known), flow.FormatRuns(forgotten)
	c.Hash = sum(c)
	b.drop(known, forgotten)
	return c
}

// counted is the hash of the row numbering: undecodable records of each message, and the changes of month
// between rows. It must be called before the rows are reordered.
func (b *block) counted() string {
	var numbers []byte
	for _, d := range b.dead {
		numbers = binary.LittleEndian.AppendUint64(numbers, d.Message.Seq)
		numbers = binary.LittleEndian.AppendUint64(numbers, uint64(d.Index))
	}
	numbers = binary.LittleEndian.AppendUint64(numbers, uint64(b.columns.Rows()))
	var of month
	for row, ms := range b.columns.TS {
		if ms >= of.from && ms < of.to {
			continue
		}
		of = b.months[slices.IndexFunc(b.months, func(m month) bool { return m.from <= ms && ms < m.to })]
		numbers = binary.LittleEndian.AppendUint64(numbers, uint64(row))
		numbers = binary.LittleEndian.AppendUint64(numbers, uint64(of.number))
	}
	return fmt.Sprintf("%016x", xxh3.Hash(numbers))
}

func (b *block) messages() string { return fmt.Sprintf("%x", b.hash.Sum128().Bytes()) }

const (
	kindRecords = "record"
	kindChange  = "change"
	kindMove    = "move"
	kindTick    = "tick"
)

// number numbers the rows by month, then place. It reorders the columns, and maps the lists of places to
// numbers.
func (b *block) number(lists ...[]flow.Run) [][]flow.Run {
	if len(b.months) <= 1 {
		return lists
	}
	slices.SortFunc(b.months, func(x, y month) int { return x.number - y.number })
	ends := make([]int, len(b.months)) // the next row of each month
	for i, end := 0, 0; i < len(ends); i++ {
		ends[i] = end
		end += b.months[i].rows
	}
	order := make([]int, b.columns.Rows())
	for row, ms := range b.columns.TS {
		i := sort.Search(len(b.months), func(i int) bool { return ms < b.months[i].to })
		order[ends[i]] = row
		ends[i]++
	}
	for i, places := range lists {
		if len(places) == 0 {
			continue
		}
		given := make([]bool, len(order))
		for _, r := range places {
			for row := r.From; row < r.To; row++ {
				given[row] = true
			}
		}
		lists[i] = nil
		for number, row := range order {
			if given[row] {
				lists[i] = flow.AddRow(lists[i], number)
			}
		}
	}
	b.columns.Arrange(order)
	return lists
}

// forgotten returns the numbers of the rows and undecodable records of forgotten instances. Undecodable records are
// numbered after all rows.
func (b *block) forgotten(rows []flow.Run) []flow.Run {
	for i := range b.dead {
		if d := &b.dead[i]; b.forget.Names(&d.Message, d.Index, d.Message.Body) {
			rows = flow.AddRow(rows, b.columns.Rows()+i)
		}
	}
	return rows
}

// drop drops rows by number: the deduplicated and the forgotten ones of a claim.
func (b *block) drop(known, forgotten []flow.Run) {
	rows := b.columns.Rows()
	for _, r := range known {
		b.totals.Deduplicated += uint64(r.To - r.From)
	}
	var skip []flow.Run
	for _, r := range forgotten {
		for i := max(r.From-rows, 0); i < r.To-rows; i++ { // of dead
			n := uint64(max(b.dead[i].Message.Records, 1))
			b.totals.DeadLettered -= n
			b.totals.Forgotten += n
			b.dead[i] = flow.Dead{} // not dead-lettered
		}
		if r.To = min(r.To, rows); r.From < r.To {
			b.totals.Forgotten += uint64(r.To - r.From)
			skip = append(skip, r)
		}
	}
	b.dead = slices.DeleteFunc(b.dead, func(d flow.Dead) bool { return d.Code == "" })
	b.dropped = dedup.Merge(known, skip)
	b.columns.Drop(b.dropped)
}

// sum is the hash of a claim: of its messages, their numbering, and the dropped rows.
func sum(c flow.Claim) string {
	sum := xxh3.HashString128(fmt.Sprintf("%s %s %s %s %s", c.Messages, c.Counted, c.Dropped, c.Forgotten, c.Void)).Bytes()
	return hex.EncodeToString(sum[:])
}

// rows counts the remaining and the dropped rows.
func (b *block) rows() int {
	n := b.columns.Rows()
	for _, r := range b.dropped {
		n += r.To - r.From
	}
	return n
}

// at is the index in the columns of the row with a number; if it was dropped, of the next remaining one.
func (b *block) at(number int) int {
	at := number
	for _, r := range b.dropped {
		if r.From >= number {
			break
		}
		at -= min(r.To, number) - r.From
	}
	return at
}

// numberOf is the number of a row of the columns, or of the end.
func (b *block) numberOf(at int) int {
	if at == b.columns.Rows() {
		return b.rows()
	}
	for _, r := range b.dropped {
		if r.From > at {
			break
		}
		at += r.To - r.From
	}
	return at
}

// left counts the remaining rows of a run of numbers.
func (b *block) left(r flow.Run) int { return b.at(r.To) - b.at(r.From) }

// half is the number at which a piece is cut in two; 0 if only one row remains.
func (b *block) half(r flow.Run) int {
	from, to := b.at(r.From), b.at(r.To)
	if to-from <= 1 {
		return 0
	}
	return b.numberOf(from + (to-from)/2)
}

// ends are the ends of pieces of a run of numbers: each of one month and at most limit rows, 0 for no limit.
// If there are many, only the first ones.
func (b *block) ends(r flow.Run, limit int) (ends []int) {
	from, to := b.at(r.From), b.at(r.To)
	for from < to && len(ends) < flow.MaxPieces {
		month := flow.Month(b.columns.TS[from])
		end := from + sort.Search(to-from, func(i int) bool { return flow.Month(b.columns.TS[from+i]) > month })
		if limit > 0 {
			end = min(end, from+limit)
		}
		if from = end; end == to {
			return append(ends, r.To)
		}
		ends = append(ends, b.numberOf(end))
	}
	return ends
}
