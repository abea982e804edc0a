// Package stream keeps records in NATS JetStream from the moment they are
// accepted until they are stored, and remembers how far storing has come.
//
//	Publish ──▶ lane FLOW_n ──▶ Reader ──▶ (the ingester)
//	               ▲    │                      │
//	        Purger ┘    └─ Lag     Positions, Leases, DeadLetters
//
// A lane is one JetStream stream: one log, one writer thread in the server,
// one reader at a time. A record always goes to the same lane of those its
// source has, because each lane knows only what it has seen itself.
//
// What happens in Publish to what of a submission goes to one lane:
//
//  1. Its parts become messages, each with an id of its own.
//  2. A small one waits while a commit of its lane is in flight; what has
//     gathered by then is committed as one atomic batch, so that one sync to
//     disk pays for all of them. When many come, the lane prepares the next
//     batch while those it has just answered come back.
//  3. A large one, or one that its group could not settle, is committed by
//     itself: a message as it is, several parts as one atomic batch.
//  4. An unknown outcome is settled by sending the same ids to the same lane
//     again; the lane answers whether it has them.
//  5. An id the lane has already is compared by the hash of its body: the same
//     is a repeat, another is a misused key.
//
// What a crash leaves: either every part that goes to a lane or none of it.
//
// The servers must be of version 2.14 or later: atomic batches, and their end
// without a message.
package stream
