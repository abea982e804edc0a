// Package broker is what stream, lease, and state ask of JetStream.
//
//	stream  lease  state
//	     ╲    │    ╱
//	      Broker ◀── Bucket    entries of a key-value bucket are messages of its stream
//	     ╱        ╲
//	  NATS      a simulated server, in tests
//
// Streams, messages, and errors are those of nats.go: *jetstream.APIError where the
// server has refused, nats.ErrNoResponders and the like where none has answered. A
// call that returns neither within its context has an unknown outcome.
package broker

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Broker is JetStream as one process reaches it. NATS is the real one. It is used
// concurrently.
type Broker interface {
	// Publish sends a message once, and returns when its stream has answered: without
	// an error it is on disk. After an error that is not an *jetstream.APIError the
	// stream may have it, now or later. Headers carry the message id
	// (Nats-Msg-Id) and the sequence that its subject must have
	// (Nats-Expected-Last-Subject-Sequence).
	Publish(ctx context.Context, msg *nats.Msg) (Ack, error)

	// Info asks the leader of a stream for its configuration and state, with the
	// messages of each subject that fits the filter when it is not empty. The error is
	// jetstream.ErrStreamNotFound when a server says that there is none.
	Info(ctx context.Context, stream, subjects string) (*jetstream.StreamInfo, error)

	// Get reads message seq of a stream from its leader; with a subject, which may
	// have wildcards, the first one from seq on that fits it. The error is
	// jetstream.ErrMsgNotFound.
	Get(ctx context.Context, stream string, seq uint64, subject string) (*jetstream.RawStreamMsg, error)

	// Last reads the last message of a subject from the leader. The error is
	// jetstream.ErrMsgNotFound.
	Last(ctx context.Context, stream, subject string) (*jetstream.RawStreamMsg, error)

	// Read begins to read a stream, from one of its servers, which may have fallen
	// behind the others.
	Read(ctx context.Context, stream string, from From) (Reading, error)

	// Purge removes messages of a stream: those before a sequence unless it is 0, and
	// of a subject unless it is empty.
	Purge(ctx context.Context, stream, subject string, before uint64) error

	// Delete removes one message; with erase its bytes are overwritten.
	Delete(ctx context.Context, stream string, seq uint64, erase bool) error

	// Names lists the streams that have a subject.
	Names(ctx context.Context, subject string) ([]string, error)

	// Create makes a stream; Update changes the configuration of one.
	Create(ctx context.Context, cfg jetstream.StreamConfig) (*jetstream.StreamInfo, error)
	Update(ctx context.Context, cfg jetstream.StreamConfig) (*jetstream.StreamInfo, error)

	// Status is the state of the connection, and its last error.
	Status() (nats.Status, error)

	// Lost calls f whenever the connection is lost, until ctx ends: what waits for an
	// answer does not get it any more.
	Lost(ctx context.Context, f func())
}

// Ack is the answer of a stream to a message.
type Ack struct {
	Stream    string
	Sequence  uint64
	Duplicate bool // it had the message already, under the same id
}

// From says what of a stream to read; the zero value is all of it.
type From struct {
	Subject string    // only messages under this one
	Seq     uint64    // from this sequence on
	Since   time.Time // from this time on; instead of Seq
	Last    bool      // the last message of each subject, and what comes; instead of Seq
	Heads   bool      // without the bodies

	Ahead int // bytes of messages held ahead of the caller; 0 is MaxMessage, which the largest message needs
}

// MaxMessage is what a reader has to ask for, so that the largest message comes: its
// subjects count too.
const MaxMessage = 16<<20 + 64<<10

// Message is a message that was read.
type Message struct {
	Subject string
	Header  nats.Header
	Data    []byte
	Seq     uint64
	At      time.Time // when the stream took it
	Number  uint64    // among those that the server has sent for this Reading, from 1: a hole is a message lost on the way
	Pending uint64    // messages behind it that the Reading would give now
}

// Reading is the messages of one Read. One goroutine uses it, but for Stop.
type Reading interface {
	// Begun is where it began: behind this message, with so many to give then.
	Begun() (behind, pending uint64)

	// Next waits for the next message. The error is that of ctx, or the Reading has
	// ended: it was stopped, its server is gone, or says nothing any more.
	Next(ctx context.Context) (Message, error)

	// Left asks the server how many messages are left to give, and how many it has
	// sent.
	Left(ctx context.Context) (pending, sent uint64, err error)

	// Stop ends it and Next, from any goroutine, more than once. The server drops it
	// after a while.
	Stop()
}
