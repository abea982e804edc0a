// Package ingest moves records from the stream to the warehouse, each exactly
// once, in blocks. It does no input or output of its own.
//
//	Source ──▶ fill ──▶ store ──▶ Warehouse
//	   │         │        ├─────▶ Positions    where the lane stands
//	   │         │        ├─────▶ DeadLetters  what cannot be stored
//	   │         │        └─────▶ Audits       who changed what
//	   │         └ decodes the next block while the last one is stored
//	   └──▶ changes ──▶ Changes   of users and dataset fields, with a position of their own
//
// # Life of a block
//
// A lane is worked on by one loop, in the process that holds its lease.
//
//  1. fill reads messages and decodes them into columns. The block is closed
//     when it is full or old enough, or when nothing is waiting and nothing is
//     being stored.
//  2. decide: which of its records are known already (package repeats).
//  3. claim: the position of the lane gets the range of the block, what is
//     dropped of it, and its token, by compare-and-swap. From here on the block
//     is fixed: the next owner of the lane stores the same rows of the same
//     messages under the same token.
//  4. set aside what could not be decoded.
//  5. insert the rows under the token; of a block that is full several pieces at
//     once, each under its own.
//  6. write down who changed what.
//  7. done: the claim of the next block records this one as done, and adds what
//     became of its records to the totals of the lane. Without a next one the
//     position is moved for itself.
//
// # Let's consider failure at each stage
//
// A crash before 3 leaves nothing: the messages are read again, and what is
// known is decided anew, perhaps about another block. A crash between 3 and 7
// leaves a claim: the next loop reads exactly its messages, drops what the claim
// drops, finds the same token, and goes through 4, 5 and 6 again. Setting aside
// is idempotent, and the warehouse recognises the tokens. A failure
// is treated as a crash of the loop alone: whatever failed, the loop ends,
// waits, and starts from the position, so that recovery is the normal path.
//
// A claim whose outcome is unknown may be recorded or not. The loop does not
// insert before it knows, and it learns by reading the position again.
//
// A loop that was paused, and whose lane has another owner by now, fails at
// its next compare-and-swap. Until then it can only repeat what was claimed,
// under the same token.
//
// The totals move with the position, so that they say exactly what became of
// the messages before it, whatever is repeated in between.
//
// # Changes of users and dataset fields
//
// They stand in lane 0 among the records, and are applied by a loop of their own
// (changes.go), so that they wait neither for the warehouse nor for a lane that is
// halted. The audit of them in the warehouse, who changed what, goes the way of the
// records.
//
// # Records that are sent again
//
// Engines send at least once. Package repeats says which rows of a block are known
// already, when the block before is stored; that stands in the claim, and is never
// decided again.
//
// flow.sources is trusted as long as it has heard of as many rows of the lane as
// the totals say were stored. One that was truncated, or restored without
// flow.records, halts the lane.
//
// Records that the warehouse refused are not in it; when they are sent again
// they are new, and set aside again.
//
// # A block that the warehouse refuses for its data
//
// It is divided: the claim is narrowed to fewer rows, with a token of its own,
// by compare-and-swap, before those rows are inserted; down to the one row
// that is refused, which is set aside. When many are refused it is not the rows:
// the lane halts until an operator has mended what refuses them. Each piece is a claim like any other,
// so a crash leaves what it leaves above. A block that the table already holds rows of
// is never divided: then a materialized view has refused what the
// table took, and only the same token can complete it, once the view is
// mended. The lane halts until then.
//
// A block that is too much at once, for the memory of the warehouse or its time,
// is divided too: first the insert gets more time, up to ten times as
// much; then fewer rows are claimed, once the warehouse is known to be done with
// all that was tried, and when nothing of it is there.
//
// A block of more than twelve months is divided into such pieces from the
// beginning (block.go).
//
// # Pieces that are inserted at once
//
// One insert takes one core of the warehouse and waits for its answers, which bounds
// what a lane stores one block at a time. So a block that is full, behind which more
// is waiting, is divided into pieces of as many rows (two by default), which are
// inserted at once and end in any order.
//
// It is one claim all the same: it names the first piece, and its token says how many
// there are, hence where each begins and which token it has. Whatever fails, the
// pieces are gone through one after the other, in the order of their rows and
// narrowed claim by narrowed claim, as those of a block that is refused. Only that
// each of them may be there already, under its token, before a claim names it: so it
// is claimed as it was sent, never smaller and never later than the first
// claim said, and is looked for after it was inserted, or instead when its token may
// be forgotten.
//
// # A claim that is old
//
// The tables remember the tokens of so many parts only. A claim that was left by
// a crash, or whose owner stood still before its insert, is inserted by its
// token only while it is certain that it is remembered: as long as less than
// half of that many parts have been inserted since. One that is older is
// completed by looking (recover.go): months that are there are left, months that
// are missing are inserted. What the counters have heard of it is not known, so
// its days are named in the position for a recount.
//
// Every repeated insert is looked for afterwards, month by month: a server that
// was killed in mid-insert may know the token of a month and have none of its
// rows. The lane halts then.
package ingest
