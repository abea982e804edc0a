package ingest

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"sluice/pkg/record"
)

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
	dead     []record.Dead    // what could not be decoded
	changes  []record.Message // in order
	fences   []string         // sources that may have been on other lanes before
	requests []request        // that the window is to know
	voids    []record.Run     // messages that count for nothing, counted from the first
	arrivals []arrival
	extra    int // bytes of dead, changes and requests

	spans  []requestSpan // of requests that are traced, the first of them
	traced int           // how many there are

	// Of the clock, behind the last message: the first one within the window,
	// when it is, and behind what an api must have known the lane not to be void.
	reach      uint64
	now        time.Duration
	voidBehind uint64

	// What became of the records so far: those that were decoded or set aside
	// instead, and those that were dropped.
	totals record.Totals

	// Where the pieces of the block end, the last one at its end: an insert has
	// the rows of one.
	ends     []int
	together int // how many of them are inserted at once: all, or 1

	full bool      // it was closed because no more goes in: more is waiting
	born time.Time // when the first message was added
}

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

func newBlock() *block { return &block{hash: xxh3.New()} }

func (b *block) reset(of life) {
	b.life, b.first, b.last, b.stamp, b.extra = of, 0, 0, 0, 0
	b.totals, b.ends, b.together, b.full = record.Totals{}, b.ends[:0], 1, false
	b.hash.Reset()
	b.columns.Reset()
	clear(b.dead) // let go of the messages
	clear(b.changes)
	clear(b.requests)
	b.dead, b.changes, b.arrivals, b.fences = b.dead[:0], b.changes[:0], b.arrivals[:0], b.fences[:0]
	b.requests, b.voids = b.requests[:0], b.voids[:0]
	b.spans, b.traced = b.spans[:0], 0
}

// letGo gives the memory of an empty block back when it has much more than it
// may fill: a block of huge records leaves room in one column, the next one in
// another, and a lane that has to share has less than it had alone.
func (b *block) letGo(enough int) {
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
func (b *block) add(e *record.Entry, void bool) {
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
		b.voids = addRow(b.voids, int(e.Seq-b.first))
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

func (b *block) addMessage(e *record.Entry, m *record.Message) {
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
	if toKnow(e, m) {
		b.requests = append(b.requests, request{
			requestID: idOf(m), seq: m.Seq, reach: b.reach, needs: e.Knew + 1, index: m.Index, row: before, rows: n,
		})
		b.extra += requestBytes
	}
}

// requestBytes is what a request of the block takes.
const requestBytes = 200

// decode adds the records of a message, without those that are bad. A message
// that is broken is set aside as a whole.
func (b *block) decode(m record.Message) {
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

func (b *block) setAside(m record.Message, bad *record.BadRecordError) {
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
func dead(m record.Message, index int, raw []byte, code, reason string) record.Dead {
	m.Body = raw
	if index >= 0 {
		m.Encoding, m.Records = "", 1
	}
	return record.Dead{Message: m, Index: index, Code: code, Reason: reason}
}

// token names what is stored of the block: the same for the same messages of the
// same life of the lane, of which the same rows are dropped and the same
// messages are void, and never for others. It is to be called before the rows are
// dropped.
func (b *block) token(dropped string) string {
	sum := b.hash.Sum128().Bytes()
	if dropped != "" || len(b.voids) > 0 {
		// Rows are named by their number, so that the number of all belongs to it.
		sum = xxh3.HashString128(fmt.Sprintf("%x %d %s %v", sum, b.columns.Rows(), dropped, b.voids)).Bytes()
	}
	return fmt.Sprintf("FLOW_%d@%d:%d-%d:%s", b.life.lane, b.life.incarnation, b.first, b.last, hex.EncodeToString(sum[:]))
}

// drop drops rows that are stored already.
func (b *block) drop(runs []record.Run) {
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
