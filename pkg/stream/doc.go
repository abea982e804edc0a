// Package stream keeps records in NATS JetStream from the moment they are
// accepted until they are stored, and remembers how far storing has come.
//
//	Publish ──▶ lane FLOW_n ──▶ Reader ──▶ (the ingester)
//	               ▲    │                      │
//	        Purger ┘    └─ Lag     Positions, DeadLetters
//
// A lane is one JetStream stream: one log, one writer thread in the server,
// one reader at a time. A record always goes to the same lane of those its
// source has, because each lane knows only what it has seen itself.
//
// What happens in Publish to what of a submission goes to one lane:
//
//  1. Its parts become pieces, and wait while an entry of the lane is in flight.
//  2. When that has ended, all that waits becomes the next entry: one message,
//     one sync to disk. Nobody waits for company.
//  3. After an unknown outcome the same bytes go out again under the same id to
//     the same lane, as long as a caller waits for them.
//  4. Every submitter is told what became of the entry.
//
// Where what is:
//
//	stream.go       opening everything        config.go     sizes, names, rights, settings of streams
//	lanes.go        the lanes there are       sources.go    which source has which, and its moves
//	publisher.go    making durable            gather.go     many requests into one entry
//	attempt.go      trying until it is known  follow.go     what was sent already, here and elsewhere
//	reader.go       reading back              positions.go  how far each lane is stored or applied
//	purger.go       lag, and what may go      deadletters.go, replay.go  what cannot be stored
//
// What a crash leaves: some pieces of a submission or none of them. Who repeats
// it has it in the lane twice; the ingester drops the second one, by its id, its
// hash and the index of each record.
package stream
