package record

import "time"

// Submission is one accepted request on its way into the stream. The parts of
// one slot go to one lane, and become durable together or not at all.
type Submission struct {
	ID          string    // identity within the duplicate window, scoped by the token's subject; ASCII, no spaces
	Hash        string    // hex of the 128-bit hash of the body: tells a repeat from a misused key
	Subject     string    // subject of the token that posted it
	Source      string    // the engine its records are of, as the token says
	Received    time.Time // when the api took it in
	TraceParent string    // W3C trace context as sent, or empty
	Slots       int       // how many slots its records were spread over; 0 is 1
	Parts       []Part    // in order, and those of one slot together; at least one
}

// Part is one message of a Submission: a JSON array of records as they were
// sent, split between records so that it stays below the part size.
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
	Replayed bool // the same ID and body were already stored: nothing new was
}

// Message is one message of a lane as the ingester reads it back.
type Message struct {
	Lane        int       // n of FLOW_n
	Seq         uint64    // stream sequence
	Topic       string    // NATS subject: flow.<n>.record or flow.0.change.…
	ID          string    // Nats-Msg-Id, or empty
	Body        []byte    // encoded as Encoding says; owned by the receiver
	Encoding    string    // EncodingS2 or empty
	Records     int       // records the publisher counted; 0 when unknown
	Received    time.Time // when the api took it in
	Subject     string    // subject of the token that posted it
	Source      string    // the engine its records are of, as that token said
	TraceParent string    // W3C trace context, or empty
	Incarnation uint64    // life of the lane, ms; 0 as it is read from the stream; whoever knows the position sets it before decoding
	At          time.Time // when the stream took it, by the server's clock: another message of the same number has another
}
