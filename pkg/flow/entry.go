package flow

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Entry is one message of a lane as it is read back: what several requests have
// brought in together, or a change, or a fence.
type Entry struct {
	Lane     int
	Seq      uint64        // stream sequence
	Topic    string        // NATS subject: flow.<n>.record, flow.<n>.fence or flow.0.change.…
	Stored   time.Time     // when the lane took it, by the clock of its server
	Knew     uint64        // the last message of the lane that its api knew
	Patience time.Duration // stream time from message Knew+1 to this one after which it is void; 0: it never is
	Table    []byte        // what it says about its requests, as it came; empty when it is no entry of requests
	Body     []byte        // all of it; the bodies of Messages are slices of it
	Messages []Message     // one for each piece of a request, in order; a change or a fence is one
	Err      error         // why the table cannot be read; then Messages has one, which is all of it

	Forgotten Forgotten // records that were taken out of it later, where null stands now
}

// Records is how many records the publisher counted.
func (e *Entry) Records() (n int) {
	for i := range e.Messages {
		n += e.Messages[i].Records
	}
	return n
}

// Message is what an entry holds of one request; or a change, or a fence.
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
	TraceParent string    // W3C trace context, or empty
	Incarnation uint64    // life of the lane, ms; 0 as it is read from the stream; the reader of the position sets it before decoding
}

// Forgotten says which records of an entry were forgotten, by their indexes in the
// entry, in order, and what had become of them. What cannot be stored is not in
// it: dead letters tell of that.
type Forgotten struct {
	Stored   []int `json:"stored,omitempty"`
	Repeated []int `json:"repeated,omitempty"`
}

// Has tells whether a record was forgotten.
func (f Forgotten) Has(index int) bool { return f.WasStored(index) || f.WasRepeated(index) }

// WasStored tells whether it had a row of its own.
func (f Forgotten) WasStored(index int) bool {
	_, is := slices.BinarySearch(f.Stored, index)
	return is
}

// WasRepeated tells whether it was known already when it came.
func (f Forgotten) WasRepeated(index int) bool {
	_, is := slices.BinarySearch(f.Repeated, index)
	return is
}

// With are those of both.
func (f Forgotten) With(more Forgotten) Forgotten {
	join := func(a, b []int) []int {
		all := append(slices.Clone(a), b...)
		slices.Sort(all)
		return slices.Compact(all)
	}
	return Forgotten{join(f.Stored, more.Stored), join(f.Repeated, more.Repeated)}
}

// Text is how a header has it, and ParseForgotten reads that.
func (f Forgotten) Text() string {
	text, _ := json.Marshal(f) // numbers
	return string(text)
}

// ParseForgotten reads what Text has written.
func ParseForgotten(text string) (f Forgotten, err error) {
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return Forgotten{}, fmt.Errorf("read which records of an entry were forgotten: %w", err)
	}
	return f, nil
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

// entryCaller is the caller of a request.
type entryCaller struct{ subject, source string }

// Reset begins an entry of an api that knew the lane up to a message.
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
	e.Append(m)
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

// Append adds it even when the entry is full.
func (e *EntryWriter) Append(m *Message) {
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
