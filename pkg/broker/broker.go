// Package broker is the interface of stream, lease, and state to JetStream.
//
//	stream  lease  state
//	     ╲    │    ╱
//	      Broker ◀── Bucket    entries of a key-value bucket are messages of its stream
//	     ╱        ╲
//	  NATS      a simulated server, in tests
//
// Streams, messages, and errors are those of nats.go: *jetstream.APIError if the server
// refused, nats.ErrNoResponders and the like if none answered. A call that returns neither
// within its context has an unknown outcome.
package broker

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Broker is JetStream as seen by one process. NATS is the real one. Safe for concurrent
// use.
type Broker interface {
	// Publish sends a message once and returns the stream's acknowledgement: nil means
	// that it is on disk. After an error other than *jetstream.APIError the stream may
	// store it, even later. Headers carry the message id (Nats-Msg-Id) and the expected
	// last sequence of its subject (Nats-Expected-Last-Subject-Sequence).
	Publish(ctx context.Context, msg *nats.Msg) (Ack, error)

	// Info reads the configuration and state of a stream from its leader, with message
	// counts of the subjects that match a non-empty filter. A missing stream is
	// jetstream.ErrStreamNotFound.
	Info(ctx context.Context, stream, subjects string) (*jetstream.StreamInfo, error)

	// Get reads message seq of a stream from its leader; with a subject, which may have
	// wildcards, the first match from seq on. A missing one is jetstream.ErrMsgNotFound.
	Get(ctx context.Context, stream string, seq uint64, subject string) (*jetstream.RawStreamMsg, error)

	// Last reads the last message of a subject from the leader. A missing one is
	// jetstream.ErrMsgNotFound.
	Last(ctx context.Context, stream, subject string) (*jetstream.RawStreamMsg, error)

	// Read starts reading a stream from one of its servers, which may lag behind.
	Read(ctx context.Context, stream string, from From) (Reading, error)

	// Purge removes messages of a stream: those before a sequence unless that is 0, of a
	// subject unless that is empty.
	Purge(ctx context.Context, stream, subject string, before uint64) error

	// Delete removes one message; with erase its bytes are overwritten.
	Delete(ctx context.Context, stream string, seq uint64, erase bool) error

	// Names lists the streams that have a subject.
	Names(ctx context.Context, subject string) ([]string, error)

	// Create creates a stream; Update changes its configuration.
	Create(ctx context.Context, cfg jetstream.StreamConfig) (*jetstream.StreamInfo, error)
	Update(ctx context.Context, cfg jetstream.StreamConfig) (*jetstream.StreamInfo, error)

	// Status is the state of the connection, and its last error.
	Status() (nats.Status, error)

	// Lost calls f whenever the connection is lost, until ctx ends: pending calls get no
	// answer.
	Lost(ctx context.Context, f func())
}

// Ack is the acknowledgement of a published message.
type Ack struct {
	Stream    string
	Sequence  uint64
	Duplicate bool // the stream already had a message with this id
}

// From selects what to read of a stream; the zero value is all of it.
type From struct {
	Subject string    // filter
	Seq     uint64    // from this sequence on
	Since   time.Time // from this time on, instead of Seq
	Last    bool      // the last message of each subject and all later ones, instead of Seq
	Heads   bool      // headers only

	Ahead int // bytes of prefetched messages; 0 is MaxMessage
}

// MaxMessage is the prefetch that the largest message needs, subject included.
const MaxMessage = 16<<20 + 64<<10

type Message struct {
	Subject string
	Header  nats.Header
	Data    []byte
	Seq     uint64
	At      time.Time // when the stream stored it
	Number  uint64    // delivery number within the Reading, from 1: a gap is a message lost on the way
	Pending uint64    // messages after it
}

// Reading is an ordered consumer. Only Stop is safe for concurrent use.
type Reading interface {
	// Begun returns its start: after message behind, with pending messages at that time.
	Begun() (behind, pending uint64)

	// Next waits for the next message. The error is that of ctx, or the Reading has
	// ended: it was stopped, or its server is gone or silent.
	Next(ctx context.Context) (Message, error)

	// Left asks the server for the numbers of messages pending and sent.
	Left(ctx context.Context) (pending, sent uint64, err error)

	// Stop ends it and Next, from any goroutine, repeatedly. The server drops it after
	// readerIdle.
	Stop()
}
