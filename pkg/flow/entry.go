package flow

import (
	"encoding/base64"
	"encoding/binary"
	"time"
)

// Entry is one message of a lane as it is read back: the chunks of several
// requests, or a change, or a move marker.
type Entry struct {
	Lane     int
	Seq      uint64        // stream sequence
	Topic    string        // NATS subject: flow.<n>.record, flow.<n>.move or flow.0.change.…
	Stored   time.Time     // when the lane stored it, by the clock of its server
	LogEnd   uint64        // last message of the lane that the api knew when it made the entry
	Patience time.Duration // stream time from message LogEnd+1 to this one after which it is void; 0: it never is
	Table    []byte        // the table of its requests, as read; empty when it is no entry of requests
	Body     []byte        // all of it; the bodies of Messages are slices of it
	Messages []Message     // one for each chunk, in order; a change or a move marker is one
	Err      error         // why the table cannot be read; then Messages has one, which is all of it
}

// Records is how many records the publisher counted.
func (e *Entry) Records() (n int) {
	for i := range e.Messages {
		n += e.Messages[i].Records
	}
	return n
}

// Message is one chunk of a request in an entry; or a change, or a move marker.
type Message struct {
	Lane        int       // n of FLOW_n
	Seq         uint64    // stream sequence of the entry
	Topic       string    // NATS subject: flow.<n>.record or flow.0.change.…
	Ordinal     int       // which of the messages of its entry it is
	Index       int       // of its first record among those of the entry
	From        int       // of its first record among those of its request that go to this lane
	ID          string    // of the request, or empty
	Hash        string    // of the body of the request, in hex; or empty
	Identified  bool      // every record has an identity of its own
	Body        []byte    // encoded as Encoding says; owned by the receiver
	Encoding    string    // EncodingS2 or empty
	Records     int       // records the publisher counted; 0 when unknown
	Received    time.Time // when the api took it in
	Subject     string    // subject of the token that posted it
	Source      string    // the engine its records are of, as that token said
	Revision    uint64    // of the list of lanes by which the source was routed; 0 when the message names none
	TraceParent string    // W3C trace context, or empty
	Incarnation uint64    // life of the lane, ms; 0 as it is read from the stream; the reader of the position sets it before decoding
}

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

// EntryWriter builds an entry: one message of a lane with chunks of several
// requests. Its body is their bodies, one after the other. Its header has a table
// that says which bytes belong to which request, so that the requests of a lane can
// be read without the bodies. docs/format.md describes every byte. The zero value is
// an empty entry.
type EntryWriter struct {
	rows    []byte // of the table
	body    []byte
	count   int                 // rows
	callers map[entryCaller]int // their number, from 1 on
	before  int64               // when the request of the row before was received, ms
}

// entryCaller is what the rows of one caller share.
type entryCaller struct {
	subject, source string
	revision        uint64
}

// Reset begins another entry in the same memory.
func (e *EntryWriter) Reset() {
	e.rows, e.body, e.count, e.before = e.rows[:0], e.body[:0], 0, 0
	clear(e.callers)
}

// Add copies a chunk into the entry, unless the entry is full. The first one
// always fits.
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

// headBytes is more than the beginning of a table takes.
const headBytes = 1 + 2*binary.MaxVarintLen64

func callerOf(m *Message) entryCaller { return entryCaller{m.Subject, m.Source, m.Revision} }

// Append copies it even when the entry is full.
func (e *EntryWriter) Append(m *Message) {
	var flags byte
	if m.Encoding == EncodingS2 {
		flags |= rowS2
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

// Table is the table of the entry as it is now, made by an api that knows the lane
// up to message logEnd; Header is the same in base64, for the message's header.
func (e *EntryWriter) Table(logEnd uint64, patience time.Duration) []byte {
	t := binary.AppendUvarint([]byte{entryVersion}, logEnd)
	t = binary.AppendUvarint(t, uint64(patience.Milliseconds()))
	return append(t, e.rows...)
}

func (e *EntryWriter) Header(logEnd uint64, patience time.Duration) string {
	return base64.RawStdEncoding.EncodeToString(e.Table(logEnd, patience))
}

// Body is good until the next Add, Append, or Reset.
func (e *EntryWriter) Body() []byte { return e.body }

// Size is about how many bytes the message takes.
func (e *EntryWriter) Size() int { return len(e.body) + len(e.rows) }
