package record

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"time"
)

// entryVersion is the first byte of every table.
const entryVersion = 1

const (
	// entryBytes is where the bodies of an entry end, unless it has only one.
	entryBytes = 512 << 10

	// tableBytes is where its table ends: in base64 it must fit, with the other
	// headers, into the 64 KiB that NATS takes.
	tableBytes = 44 << 10

	// EntryNameBytes bounds what a row may be longer for its names, so that the
	// table of an entry of one request fits.
	EntryNameBytes = 32 << 10
)

// Flags of a row.
const (
	rowS2         = 1 << iota // the body is compressed with S2
	rowIdentified             // every record has an identity of its own
	rowFlags      = iota      // how many there are
)

// EntryWriter puts an entry together. The zero value is for Reset.
//
// An entry is one message of a lane: what several requests have brought in
// together. Its body is their bodies, one after the other; its header has a
// table that says which bytes are whose, so that the requests of a lane are
// known without its bodies. docs/format.md has every byte of it.
type EntryWriter struct {
	table   []byte
	body    []byte
	rows    int
	callers map[entryCaller]int // by what they are called, their number from 1 on
	before  int64               // when the request of the row before was received, ms
}

// entryCaller is who has sent a request.
type entryCaller struct{ subject, source string }

// Reset begins an entry by one who knew the lane up to a message.
func (e *EntryWriter) Reset(knew uint64, patience time.Duration) {
	e.table = append(e.table[:0], entryVersion)
	e.table = binary.AppendUvarint(e.table, knew)
	e.table = binary.AppendUvarint(e.table, uint64(patience.Milliseconds()))
	e.body, e.rows, e.before = e.body[:0], 0, 0
	if e.callers == nil {
		e.callers = map[entryCaller]int{}
	}
	clear(e.callers)
}

// Add adds what is in the entry of a request, unless the entry is full. The
// first one always fits.
func (e *EntryWriter) Add(m *Message) bool {
	if e.rows > 0 && len(e.body)+len(m.Body) > entryBytes {
		return false
	}
	end, callers := len(e.table), len(e.callers)
	before := e.before
	e.add(m)
	if e.rows > 1 && len(e.table) > tableBytes {
		if len(e.callers) > callers {
			delete(e.callers, entryCaller{m.Subject, m.Source})
		}
		e.table, e.before = e.table[:end], before
		e.body, e.rows = e.body[:len(e.body)-len(m.Body)], e.rows-1
		return false
	}
	return true
}

// add adds it even when the entry is full.
func (e *EntryWriter) add(m *Message) {
	var flags byte
	if m.Encoding == EncodingS2 {
		flags |= rowS2
	}
	if m.Identified {
		flags |= rowIdentified
	}
	t := append(e.table, flags)
	t = AppendName(t, m.ID)
	t = AppendName(t, m.Hash)
	who := entryCaller{m.Subject, m.Source}
	number := e.callers[who]
	t = binary.AppendUvarint(t, uint64(number))
	if number == 0 {
		t = AppendName(AppendName(t, m.Subject), m.Source)
		e.callers[who] = len(e.callers) + 1
	}
	received := m.Received.UnixMilli()
	t = binary.AppendVarint(t, received-e.before)
	t = AppendName(t, packTrace(m.TraceParent))
	t = binary.AppendUvarint(t, uint64(m.From))
	t = binary.AppendUvarint(t, uint64(m.Records))
	e.table, e.before = binary.AppendUvarint(t, uint64(len(m.Body))), received
	e.body = append(e.body, m.Body...)
	e.rows++
}

// Header is the table as it stands in the header of the message.
func (e *EntryWriter) Header() string { return base64.RawStdEncoding.EncodeToString(e.table) }

// Table is the table itself, and Body what it is about. Both are good until the
// next Reset.
func (e *EntryWriter) Table() []byte { return e.table }
func (e *EntryWriter) Body() []byte  { return e.body }

// AppendName appends text as a table has it: its length and itself, or, of hex digits, half as
// many bytes. The lowest bit of the length tells which.
func AppendName(dst []byte, text string) []byte {
	if n := len(text); n > 0 && n%2 == 0 && isHex(text) {
		dst = binary.AppendUvarint(dst, uint64(n/2)<<1|1)
		for i := 0; i < n; i += 2 {
			dst = append(dst, digit(text[i])<<4|digit(text[i+1]))
		}
		return dst
	}
	dst = binary.AppendUvarint(dst, uint64(len(text))<<1)
	return append(dst, text...)
}

func isHex(text string) bool {
	for _, c := range []byte(text) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func digit(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c - 'a' + 10
}

// A W3C trace context is 00-<32 hex>-<16 hex>-<2 hex>. Without its dashes it is
// half as long in a table.
var dashes = [...]int{2, 35, 52}

const (
	traceLength  = 55
	packedLength = traceLength - len(dashes)
)

func packTrace(parent string) string {
	if len(parent) != traceLength || parent[2] != '-' || parent[35] != '-' || parent[52] != '-' {
		return parent
	}
	return parent[:2] + parent[3:35] + parent[36:52] + parent[53:]
}

// TraceParent is a W3C trace context of a span that is kept.
func TraceParent(trace [16]byte, span [8]byte) string {
	text := make([]byte, 0, traceLength)
	text = hex.AppendEncode(append(text, "00-"...), trace[:])
	text = hex.AppendEncode(append(text, '-'), span[:])
	return string(append(text, "-01"...))
}

// TraceSpan is the span that a W3C trace context names. ok is false when there is
// none, or none that is kept.
func TraceSpan(parent string) (trace [16]byte, span [8]byte, ok bool) {
	packed := packTrace(parent)
	var b [packedLength / 2]byte
	if len(packed) != packedLength || len(parent) != traceLength {
		return trace, span, false
	}
	if _, err := hex.Decode(b[:], []byte(packed)); err != nil {
		return trace, span, false
	}
	const sampled = 1
	copy(trace[:], b[1:])
	copy(span[:], b[17:])
	return trace, span, b[0] != 0xff && b[25]&sampled != 0 && trace != [16]byte{} && span != [8]byte{}
}

func unpackTrace(packed string) string {
	if len(packed) != packedLength || !isHex(packed) {
		return packed
	}
	return packed[:2] + "-" + packed[2:34] + "-" + packed[34:50] + "-" + packed[50:]
}

// tableReader reads a table, and remembers what is wrong with it first.
type tableReader struct {
	b   []byte
	at  int
	row int // being read; -1 in the beginning
	err error
}

func (r *tableReader) fail(what string, args ...any) {
	if r.err != nil {
		return
	}
	where := "in its beginning"
	if r.row >= 0 {
		where = fmt.Sprintf("in row %d", r.row)
	}
	r.err = fmt.Errorf("the table of the entry is damaged at byte %d, %s: %s", r.at, where, fmt.Sprintf(what, args...))
}

// number reads an unsigned number of at most most.
func (r *tableReader) number(name string, most uint64) uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b[r.at:])
	switch {
	case n <= 0 || n > 1 && r.b[r.at+n-1] == 0: // too long, cut off, or written longer than it must be
		r.fail("%s is no number", name)
		return 0
	case v > most:
		r.fail("%s is %d, more than %d", name, v, most)
		return 0
	}
	r.at += n
	return v
}

// name reads a text.
func (r *tableReader) name(what string) string {
	n := r.number("the length of "+what, 1<<24)
	size := int(n >> 1)
	if r.err == nil && size > len(r.b)-r.at {
		r.fail("%s has %d bytes, and %d are left", what, size, len(r.b)-r.at)
	}
	if r.err != nil {
		return ""
	}
	text := r.b[r.at : r.at+size]
	r.at += size
	if n&1 == 0 {
		if size > 0 && size%2 == 0 && isHex(string(text)) {
			r.fail("%s is hex digits that are not packed", what)
		}
		return string(text)
	}
	if size == 0 {
		r.fail("%s is packed and empty", what)
	}
	return hex.EncodeToString(text)
}

// Parse reads the table of an entry, and cuts its body by it, unless that is nil.
// Every table can be written in one way only. After an error there are no messages.
func (e *Entry) Parse(table, body []byte) error {
	const mostMS = 1 << 50 // far beyond every time there will be
	r := tableReader{b: table, row: -1}
	if len(table) == 0 || table[0] != entryVersion {
		r.fail("it is not of version %d", entryVersion)
		return r.err
	}
	r.at = 1
	e.Knew = r.number("the last known message", 1<<63)
	e.Patience = time.Duration(r.number("the patience", uint64((1<<63-1)/time.Millisecond))) * time.Millisecond
	var callers []entryCaller
	var received int64
	index, left := 0, len(body)
	if body == nil { // it was not asked for
		left = 1 << 31
	}
	for r.row = 0; r.err == nil && (r.at < len(table) || r.row == 0); r.row++ {
		m := Message{Lane: e.Lane, Seq: e.Seq, Topic: e.Topic, Ordinal: r.row, Index: index}
		flags := r.number("the flags", 1<<rowFlags-1)
		if flags&rowS2 != 0 {
			m.Encoding = EncodingS2
		}
		m.Identified = flags&rowIdentified != 0
		m.ID, m.Hash = r.name("the id"), r.name("the hash")
		if number := r.number("the caller", uint64(len(callers))); number == 0 {
			who := entryCaller{r.name("the subject"), r.name("the source")}
			if slices.Contains(callers, who) {
				r.fail("a caller comes twice")
			}
			callers = append(callers, who)
			m.Subject, m.Source = who.subject, who.source
		} else {
			m.Subject, m.Source = callers[number-1].subject, callers[number-1].source
		}
		zigzag := r.number("the time it was received", 1<<63)
		received += int64(zigzag>>1) ^ -int64(zigzag&1)
		if received < -mostMS || received > mostMS {
			r.fail("it was received at %d ms", received)
		}
		m.Received = time.UnixMilli(received).UTC()
		packed := r.name("the trace context")
		m.TraceParent = unpackTrace(packed)
		if packTrace(packed) != packed {
			r.fail("the trace context is not packed")
		}
		m.From = int(r.number("the index of the first record", 1<<31))
		if m.Records = int(r.number("the records", 1<<31)); m.Records == 0 {
			r.fail("it has no records")
		}
		size := int(r.number("the length of the body", uint64(left)))
		left -= size
		if body != nil && r.err == nil {
			m.Body, body = body[:size:size], body[size:]
		}
		index += m.Records
		if r.err == nil {
			e.Messages = append(e.Messages, m)
		}
	}
	if body != nil && r.err == nil && left > 0 {
		r.fail("%d bytes of the body are nobody's", left)
	}
	if r.err != nil {
		e.Messages = nil
	}
	return r.err
}

// SkimEntry calls f with id and hash of every request in the table of an entry that
// needs the memory of requests, as they stand there. It looks no closer than it
// must: Parse does. They are as AppendName
// writes them, and good until f returns.
func SkimEntry(table []byte, f func(id, hash []byte)) error {
	r := tableReader{b: table, row: -1}
	if len(table) == 0 || table[0] != entryVersion {
		r.fail("it is not of version %d", entryVersion)
		return r.err
	}
	r.at = 1
	r.skip(2) // what the api knew, and its patience
	for r.row = 0; r.err == nil && r.at < len(table); r.row++ {
		flags := r.number("the flags", 1<<rowFlags-1)
		id := r.raw()
		hash := r.raw()
		if r.number("the caller", 1<<31) == 0 {
			r.raw()
			r.raw()
		}
		r.skip(1) // when it was received
		r.raw()   // the trace context
		r.skip(3) // the first record, how many, and the bytes of the body
		if r.err == nil && flags&rowIdentified == 0 {
			f(id, hash)
		}
	}
	return r.err
}

// raw is a text as it stands in the table, its length included.
func (r *tableReader) raw() []byte {
	begin := r.at
	size := int(r.number("the length of a name", 1<<24) >> 1)
	if r.err == nil && size > len(r.b)-r.at {
		r.fail("a name has %d bytes, and %d are left", size, len(r.b)-r.at)
	}
	if r.err != nil {
		return nil
	}
	r.at += size
	return r.b[begin:r.at]
}

// skip passes over numbers.
func (r *tableReader) skip(n int) {
	for range n {
		_, size := binary.Uvarint(r.b[min(r.at, len(r.b)):])
		if size <= 0 {
			r.fail("a number is missing")
			return
		}
		r.at += size
	}
}
