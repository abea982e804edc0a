// Package flow holds the types and error classes that packages of Sluice exchange.
//
//	submission.go  input: caller, request, chunks, receipt
//	entry.go       messages of a lane
//	table.go       the table of an entry, byte by byte (docs/format.md)
//	lanestate.go   checkpoints, holds, totals
//	claim.go       the block being stored
//	forget.go      orders to forget instances
//	identity.go    deduplication keys of records
//	errors.go      error classes and their handling
//
// It imports no other package of this module.
package flow

// Format is the version of everything stored: data folder, streams, buckets, tables. At
// start a program refuses any other.
const Format = 1
