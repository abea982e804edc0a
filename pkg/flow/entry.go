package flow

import (
	"encoding/base64"
	"encoding/binary"
	"time"
)

// Entry is one message of a lane as read: chunks of several requests, a change, or a
// move marker.
type Entry struct {
	Lane     int
	Seq      uint64        // stream sequence
	Topic    string        // NATS subject: flow.<n>.record, flow.<n>.move or flow.0.change.…
	Stored   time.Time     // when the lane stored it, by its server's clock
	LogEnd   uint64        // last sequence of the lane known to the api when it made the entry
	Patience time.Duration // it is void after this stream time since message LogEnd+1; 0: never
	Table    []byte        // the table of its requests, as read; empty for changes and markers
	Body     []byte        // all of it; the bodies of Messages are slices of it
	Messages []Message     // one per chunk, in order; a change or a move marker is one
	Err      error         // why the table cannot be read; Messages then holds one, the whole message
}

func (e *Entry) Records() (n int) {
	for i := range e.Messages {
		n += e.Messages[i].Records
	}
	return n
}

// Message is one chunk of a request in an entry, a change, or a move marker.
type Message struct {
	Lane        int       // n of FLOW_n
	Seq         uint64    // stream sequence of the entry
	Topic       string    // NATS subject: flow.<n>.record or flow.0.change.…
	Ordinal     int       // its number in the entry
	Index       int       // of its first record, in the entry
	From        int       // of its first record, among those of its request in this lane
	ID          string    // of the request, or empty
	Hash        string    // of the body of the request, in hex; or empty
	Identified  bool      // every record has a deduplication key
	Body        []byte    // encoded by Encoding; owned by the receiver
	Encoding    string    // EncodingColumns, EncodingS2 or empty
	Records     int       // records the publisher counted; 0 when unknown
	Received    time.Time // when the api received it
	Subject     string    // subject of the token that posted it
	Source      string    // the engine of its records, from that token
	Revision    uint64    // of the source's lane list at routing; 0: none
	TraceParent string    // W3C trace context, or empty
	Incarnation uint64    // incarnation of the lane, ms; 0 until the reader sets it from the lane state
}

// entryVersion is the first byte of every table.
const entryVersion = 1

const (
	// entryBytes bounds the bodies of an entry of more than one.
	entryBytes = 512 << 10

	// tableBytes bounds the table: in base64, with the other headers, it must fit into
	// the 64 KiB that NATS allows.
	tableBytes = 44 << 10

	// EntryNameBytes bounds the names of a row, so that the table of one request
	// fits.
	EntryNameBytes = 32 << 10
)

// Flags of a row.
const (
	rowS2         = 1 << iota // the body is compressed with S2
	rowIdentified             // every record has a deduplication key
	rowColumns                // the body is columns, compressed with S2
	rowFlags      = iota      // number of flags
)

// EntryWriter builds an entry: one message of a lane with chunks of several requests.
// The body is their bodies, concatenated. The header's table maps bytes to requests, so
// that requests can be read without bodies (docs/format.md). The zero value is an empty
// entry.
type EntryWriter struct {
	rows    []byte // of the table
	body    []byte
	count   int                 // rows
	callers map[entryCaller]int // their number, from 1 on
	before  int64               // when the request of the row before was received, ms
}

// entryCaller is the part of a row that requests of one caller share.
type entryCaller struct {
	subject, source string
	revision        uint64
}

// Reset begins another entry in the same buffers.
func (e *EntryWriter) Reset() {
	e.rows, e.body, e.count, e.before = e.rows[:0], e.body[:0], 0, 0
	clear(e.callers)
}

// Add copies a chunk into the entry, unless the entry is full. The first always fits.
func (e *EntryWriter) Add(m *Message) bool {
	if e.count > 0 && len(e.body)+len(m.Body) > entryBytes {
		return false
	}
	end, callers, before := len(e.rows), len(e.callers), e.before
	e.Append(m)
	if e.count > 1 && len(e.rows)+headBytes > tableBytes {
		if len(e.callers) > callers {
			delete(e.callers, callerOf(m))
		}
		e.rows, e.before = e.rows[:end], before
		e.body, e.count = e.body[:len(e.body)-len(m.Body)], e.count-1
		return false
	}
	return true
}

// headBytes bounds the bytes of a table before its rows.
const headBytes = 1 + 2*binary.MaxVarintLen64

func callerOf(m *Message) entryCaller { return entryCaller{m.Subject, m.Source, m.Revision} }

// Append copies a chunk even when the entry is full.
func (e *EntryWriter) Append(m *Message) {
	var flags byte
	switch m.Encoding {
	case EncodingS2:
		flags |= rowS2
	case EncodingColumns:
		flags |= rowColumns
	}
	if m.Identified {
		flags |= rowIdentified
	}
	t := append(e.rows, flags)
	t = appendName(t, m.ID)
	t = appendName(t, m.Hash)
	caller := callerOf(m)
	number := e.callers[caller]
	t = binary.AppendUvarint(t, uint64(number))
	if number == 0 {
		t = appendName(appendName(t, m.Subject), m.Source)
		t = binary.AppendUvarint(t, m.Revision)
		if e.callers == nil {
			e.callers = map[entryCaller]int{}
		}
		e.callers[caller] = len(e.callers) + 1
	}
	received := m.Received.UnixMilli()
	t = binary.AppendVarint(t, received-e.before)
	t = appendName(t, packTrace(m.TraceParent))
	t = binary.AppendUvarint(t, uint64(m.From))
	t = binary.AppendUvarint(t, uint64(m.Records))
	e.rows, e.before = binary.AppendUvarint(t, uint64(len(m.Body))), received
	e.body = append(e.body, m.Body...)
	e.count++
}

// Table is the table of the entry so far, for an api that has read the lane up to logEnd;
// Header is the same in base64.
func (e *EntryWriter) Table(logEnd uint64, patience time.Duration) []byte {
	t := binary.AppendUvarint([]byte{entryVersion}, logEnd)
	t = binary.AppendUvarint(t, uint64(patience.Milliseconds()))
	return append(t, e.rows...)
}

func (e *EntryWriter) Header(logEnd uint64, patience time.Duration) string {
	return base64.RawStdEncoding.EncodeToString(e.Table(logEnd, patience))
}

// Body is valid until the next Add, Append, or Reset.
func (e *EntryWriter) Body() []byte { return e.body }

// Size approximates the bytes of the message.
func (e *EntryWriter) Size() int { return len(e.body) + len(e.rows) }
