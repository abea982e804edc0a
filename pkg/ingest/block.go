package ingest

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"sluice/pkg/flow"
	"sluice/pkg/ingest/repeats"
	"sluice/pkg/record"
)

// arrival is when the records of a message were taken in.
type arrival struct {
	received time.Time
	records  int
}

// life is a lane from the making of its stream, or from a reset, on.
type life struct {
	lane        int
	incarnation uint64
}

// block is a run of messages of one lane on its way into the warehouse. It is
// owned by fill until it is handed to store, and by store until it is given
// back; two of them take turns.
type block struct {
	life  life   // of the lane
	first uint64 // sequence of the first message; 0 while there is none
	last  uint64 // and of the last
	stamp int64  // when the stream took the last message, ns since 1970
	hash  *xxh3.Hasher

	columns  record.Columns
	dead     []flow.Dead       // what could not be decoded
	changes  []flow.Message    // in order
	fences   []string          // sources that may have been on other lanes before
	requests []repeats.Request // that are to be known
	voids    []flow.Run        // messages that count for nothing, counted from the first
	arrivals []arrival
	extra    int // bytes of dead, changes and requests

	spans  []requestSpan // of requests that are traced, the first of them
	traced int           // how many there are

	clock repeats.Moment // what the clock of the lane said when the last message was added

	// What became of the records so far: those that were decoded or set aside
	// instead, and those that were dropped.
	totals flow.Totals

	// Where the pieces of the block end, the last one at its end: an insert has
	// the rows of one.
	ends     []int
	together int // how many of them are inserted at once: all, or 1

	full bool      // it was closed because no more goes in: more is waiting
	born time.Time // when the first message was added
}

func newBlock() *block { return &block{hash: xxh3.New()} }

func (b *block) reset(of life) {
	b.life, b.first, b.last, b.stamp, b.extra = of, 0, 0, 0, 0
	b.totals, b.ends, b.together, b.full = flow.Totals{}, b.ends[:0], 1, false
	b.hash.Reset()
	b.columns.Reset()
	clear(b.dead) // let go of the messages
	clear(b.changes)
	clear(b.requests)
	b.dead, b.changes, b.arrivals, b.fences = b.dead[:0], b.changes[:0], b.arrivals[:0], b.fences[:0]
	b.requests, b.voids = b.requests[:0], b.voids[:0]
	b.spans, b.traced = b.spans[:0], 0
}

// shrink gives the memory of an empty block back when it has much more than it
// may fill: a block of huge records leaves room in one column, the next one in
// another, and a lane that has to share has less than it had alone.
func (b *block) shrink(enough int) {
	const spare = 8 << 20 // of messages that go beyond what is full
	if b.columns.Held() > enough+spare {
		b.columns = record.Columns{}
		b.columns.Reset()
	}
}

func (b *block) empty() bool { return b.first == 0 }

func (b *block) bytes() int { return b.columns.Bytes() + b.extra }

// add adds a message to the end of the block. It never fails: what cannot be
// decoded is set aside. Of one that is void nothing is kept.
func (b *block) add(e *flow.Entry, void bool) {
	if b.empty() {
		b.first = e.Seq
	}
	b.last, b.stamp = e.Seq, e.Stored.UnixNano()
	for _, raw := range [...][]byte{e.Table, e.Body} {
		var size [8]byte
		binary.LittleEndian.PutUint64(size[:], uint64(len(raw)))
		_, _ = b.hash.Write(size[:])
		_, _ = b.hash.Write(raw)
	}
	if void {
		b.voids = repeats.AddRow(b.voids, int(e.Seq-b.first))
		n := uint64(e.Records())
		b.totals.Read += n
		b.totals.Void += n
		return
	}
	for i := range e.Messages {
		m := &e.Messages[i]
		m.Incarnation = b.life.incarnation
		if e.Err != nil {
			b.setAside(*m, &record.BadRecordError{Index: -1, Code: record.CodeBadEntry, Reason: e.Err.Error(), Raw: e.Body})
			continue
		}
		b.addMessage(e, m)
	}
}

func (b *block) addMessage(e *flow.Entry, m *flow.Message) {
	before := b.columns.Rows()
	switch kind(m.Topic) {
	case kindRecords:
		b.decode(*m)
	case kindChange:
		b.changes = append(b.changes, *m)
		b.extra += len(m.Body)
	case kindFence:
		b.fences = append(b.fences, m.Source)
	default:
		b.setAside(*m, &record.BadRecordError{Index: -1, Code: "unknown_topic", Reason: "the message has an unknown topic", Raw: m.Body})
	}
	n := b.columns.Rows() - before
	if n > 0 {
		b.totals.Read += uint64(n)
		b.arrivals = append(b.arrivals, arrival{m.Received, n})
	}
	if r, ok := repeats.RequestOf(e, m, b.clock, before, n); ok {
		b.requests = append(b.requests, r)
		b.extra += requestBytes
	}
}

// requestBytes is what a request of the block takes.
const requestBytes = 200

// decode adds the records of a message, without those that are bad. A message
// that is broken is set aside as a whole.
func (b *block) decode(m flow.Message) {
	bad, err := b.columns.AppendGood(&m)
	for _, one := range bad {
		b.setAside(m, one)
	}
	var broken *record.BadRecordError
	switch {
	case errors.As(err, &broken):
		b.setAside(m, broken)
	case err != nil:
		b.setAside(m, &record.BadRecordError{Index: -1, Code: "broken_message", Reason: "the message cannot be decoded", Raw: m.Body})
	}
}

func (b *block) setAside(m flow.Message, bad *record.BadRecordError) {
	index, n := bad.Index, uint64(1)
	if index < 0 { // the whole message: as many as its publisher has counted
		index, n = -1-m.Ordinal, uint64(max(m.Records, 1))
	}
	b.dead = append(b.dead, dead(m, index, bad.Raw, bad.Code, bad.Reason))
	b.extra += len(bad.Raw)
	b.totals.Read += n
	b.totals.Dead += n
}

// dead is the record with this index of m, or all of m when it is below 0.
func dead(m flow.Message, index int, raw []byte, code, reason string) flow.Dead {
	m.Body = raw
	if index >= 0 {
		m.Encoding, m.Records = "", 1
	}
	return flow.Dead{Message: m, Index: index, Code: code, Reason: reason}
}

// drop drops rows that are stored already.
func (b *block) drop(runs []flow.Run) {
	for _, r := range runs {
		b.totals.Repeated += uint64(r.To - r.From)
	}
	b.columns.Drop(runs)
}

// kinds of messages.
const (
	kindRecords = "record"
	kindChange  = "change"
	kindFence   = "fence"
)

// kind tells what a message holds: its topic is flow.<lane>.<kind>, and more
// for a change.
func kind(topic string) string {
	_, rest, _ := strings.Cut(topic, ".")
	_, rest, _ = strings.Cut(rest, ".")
	k, _, _ := strings.Cut(rest, ".")
	return k
}

// token names what is stored of the block: the same for the same messages of the
// same life of the lane, with the same rows dropped and the same messages void, and
// never for others. It is to be called before the rows are
// dropped.
func (b *block) token(dropped string) string {
	sum := b.hash.Sum128().Bytes()
	if dropped != "" || len(b.voids) > 0 {
		// Rows are named by their number, so that the number of all belongs to it.
		sum = xxh3.HashString128(fmt.Sprintf("%x %d %s %v", sum, b.columns.Rows(), dropped, b.voids)).Bytes()
	}
	return fmt.Sprintf("FLOW_%d@%d:%d-%d:%s", b.life.lane, b.life.incarnation, b.first, b.last, hex.EncodeToString(sum[:]))
}

// A token names the block, how many pieces of it are inserted at once, and which
// rows it stands for: FLOW_0@1:7-9:hash, FLOW_0@1:7-9:hash*2, and
// FLOW_0@1:7-9:hash*2#0-500. A version that knows nothing of pieces at once halts at
// such a token: it would take the pieces behind the first one for never inserted.

// togetherToken is the token of the block with the token whole, so many pieces of
// which are inserted at once.
func togetherToken(whole string, pieces int) string {
	if pieces == 1 {
		return whole
	}
	return fmt.Sprintf("%s*%d", whole, pieces)
}

// pieceToken is the token of some rows of the block with the token whole.
func pieceToken(whole string, from, to int) string {
	return fmt.Sprintf("%s#%d-%d", whole, from, to)
}

// wholeToken is the token of the block that a claim is, or is a piece of.
func wholeToken(token string) string {
	whole, _, _ := strings.Cut(token, "#")
	return whole
}

// piecesOf is how many pieces of the block of a token are inserted at once. One that
// says nothing that can be understood says 1, and is not the token of any block.
func piecesOf(token string) int {
	_, n, _ := strings.Cut(wholeToken(token), "*")
	pieces, err := strconv.Atoi(n)
	if err != nil {
		return 1
	}
	return max(pieces, 1)
}

// maxMonths bounds how many months an insert may have: each makes a part in
// flow.records, and every table remembers the tokens of so many parts only.
const maxMonths = 12

// cut divides a block into so many pieces of as many rows, which are inserted at
// once, or a block of more than maxMonths months into others, which are not: the
// rows of the first maxMonths months, of the next, and so on. The rows are put in
// that order, each piece in the order of the stream. The same rows are always divided
// the same way, so that a claim can name a piece by the numbers of its rows.
func (b *block) cut(pieces int) {
	rows := b.columns.Rows()
	months := b.columns.Months(0, rows)
	b.together, b.ends = 1, b.ends[:0]
	if len(months) <= maxMonths {
		b.together = max(1, min(pieces, rows))
		for i := range b.together {
			b.ends = append(b.ends, rows*(i+1)/b.together)
		}
		return
	}
	inOrder := slices.Sorted(maps.Keys(months))
	piece := map[int]int{} // of each month
	next := make([]int, (len(inOrder)+maxMonths-1)/maxMonths)
	end := 0
	for i, month := range inOrder {
		piece[month] = i / maxMonths
		if i%maxMonths == 0 {
			next[i/maxMonths] = end
		}
		end += int(months[month])
		if i%maxMonths == maxMonths-1 || i == len(inOrder)-1 {
			b.ends = append(b.ends, end)
		}
	}
	order := make([]int, rows)
	for row, ms := range b.columns.TS {
		p := piece[flow.Month(ms)]
		order[next[p]] = row
		next[p]++
	}
	b.columns.Arrange(order)
}

// end is where a claim that begins at row from ends at the latest.
func (b *block) end(from int) int {
	for _, end := range b.ends {
		if end > from {
			return end
		}
	}
	return from
}

// after is where the claim after that of the rows from to to-1 ends, when so many
// rows may be inserted at once, or any number of them when it is 0. One that was
// narrowed may be twice as large again. A piece that may have been inserted is claimed
// as it was: its rows must not come under another token.
func (b *block) after(from, to, bearable int) int {
	end := b.end(to)
	if b.mayBeThere(to, end) {
		return end
	}
	if from > 0 && !slices.Contains(b.ends, from) || !slices.Contains(b.ends, to) {
		end = min(end, to+2*(to-from))
	}
	if bearable > 0 {
		end = min(end, to+bearable)
	}
	return end
}

// mayBeThere says that the rows from to to-1 are a piece that is inserted together
// with others: before a claim names it, and maybe by a process before this one.
func (b *block) mayBeThere(from, to int) bool {
	return b.together > 1 && (from == 0 || slices.Contains(b.ends, from)) && slices.Contains(b.ends, to) && b.end(from) == to
}

// claims are those of the pieces of the block with the claim c.
func (b *block) claims(c flow.Claim) []flow.Claim {
	all, from := make([]flow.Claim, len(b.ends)), 0
	for i, to := range b.ends {
		all[i] = c
		all[i].From, all[i].To, all[i].Token = from, to, pieceToken(wholeToken(c.Token), from, to)
		from = to
	}
	return all
}

// gather puts the rows of these months first among the rows from to to-1, and
// returns how many they are.
func (b *block) gather(from, to int, months []int) int {
	order := make([]int, 0, b.columns.Rows())
	var others []int
	for row := range b.columns.Rows() {
		if row >= from && row < to && !slices.Contains(months, flow.Month(b.columns.TS[row])) {
			others = append(others, row)
			continue
		}
		if row == to {
			order = append(order, others...)
		}
		order = append(order, row)
	}
	if len(order) < b.columns.Rows() {
		order = append(order, others...)
	}
	b.columns.Arrange(order)
	return to - from - len(others)
}
