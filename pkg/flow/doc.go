// Package flow is what passes between the packages of Sluice: the contract they
// meet in, and nothing that one of them does alone.
//
//	submission.go  what comes in: who calls, the pieces of a request, the receipt
//	entry.go       how it waits: entries, their messages
//	table.go       the table of an entry, byte by byte (docs/format.md)
//	lanestate.go   how far it has come: checkpoints, holds, totals
//	claim.go       the block that is being stored
//	forget.go      orders to forget instances
//	identity.go    what makes two records the same, and how far each source reaches
//	errors.go      the few classes of errors, and what each one asks for
//
// It imports no other package of this module; every other may import it.
package flow

// Format is the version of everything that is stored: the data folder, streams, buckets
// and tables. A program refuses any other one when it starts. Versions before 1 had no
// number.
const Format = 1
