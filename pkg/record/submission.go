package record

import "time"

// Submission is one accepted request on its way into the stream.
type Submission struct {
	ID          string    // identity within the duplicate window, scoped by the token's subject; ASCII, no spaces
	Hash        string    // hex of the 128-bit hash of the body: tells a repeat from a misused key
	Subject     string    // subject of the token that posted it
	Source      string    // the engine its records are of, as the token says
	Received    time.Time // when the api took it in
	TraceParent string    // W3C trace context as sent, or empty
	Identified  bool      // every record has an identity of its own, so that a repeat needs no memory of the request
	Unique      bool      // nobody ever sends its ID again
	Slots       int       // how many slots its records were spread over; 0 is 1
	Parts       []Part    // in order, and those of one slot together; at least one
}

// Part is a piece of a Submission: a JSON array of records as they were sent,
// split between records so that it stays below the part size.
type Part struct {
	Body     []byte // JSON array, encoded as Encoding says; not modified or kept after Publish returns
	Encoding string // EncodingS2, or empty for plain JSON
	Records  int    // how many records the array holds
	Slot     int    // which of its source's lanes it goes to
}

// EncodingS2 marks a body compressed as one S2 block.
const EncodingS2 = "s2"

// Receipt is what the stream answers once a Submission is durable.
type Receipt struct {
	Replayed bool // the same ID and body were sent before: nothing of it is stored twice
}

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
