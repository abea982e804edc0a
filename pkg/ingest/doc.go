// Package ingest moves records from the stream to the warehouse, each exactly
// once, in blocks. It does no input or output of its own.
//
//	Lanes ──▶ fill ──▶ store ──▶ Tables       rows
//	   │        │        ├─────▶ LaneStates   the checkpoint, and the claim
//	   │        │        ├─────▶ DeadLetters  what cannot be stored
//	   │        │        └─────▶ Audits       who changed what
//	   │        └ decodes the next block while the last one is stored
//	   └──▶ changes ──▶ Changes   of users and dataset fields, with a checkpoint of their own
//
// # Life of a block
//
// A lane is worked on by one loop (lane.go), in the process that holds its lease.
//
//  1. fill reads messages and decodes them into columns (fill.go, block.go). The
//     block is closed when it is full or old enough, when nothing is waiting and
//     nothing is being stored, at a 25th month, and behind a move marker.
//  2. decide (store.go): which of its records are known already (package dedup).
//  3. claim: the lane state gets the range of the block, a hash of its messages,
//     what is dropped of it, when it is stored, and its pieces, by compare-and-swap.
//     From here on the block is fixed: the next owner of the lane stores the same
//     rows of the same messages under the same tokens.
//  4. dead-letter what could not be decoded.
//  5. insert its pieces, each under its token (store.go); what came of one that failed, or
//     was perhaps inserted before, is in pieces.go.
//  6. write the audit of changes.
//  7. done: the claim of the next block records this one as done, and adds what
//     became of its records to the totals of the lane. Without a next one the
//     lane state is written for itself.
//
// # Pieces
//
// Rows are numbered by month, then by place. A piece is rows of one month, and one
// insert. An ordinary block is one piece; a full block, behind which more is
// waiting, is several that are inserted at once; a block of several months is a
// piece for each.
//
// One loop stores them: it inserts the first open pieces, hands what came of each to
// flow.Claim.Next, and writes the answer into the lane state before the next round.
// Once every piece is settled nothing is written: the next claim records it. So an
// ordinary block costs one compare-and-swap and one insert.
//
// A piece that ClickHouse rejects for its data, or that is too large for its memory
// or time, is cut in two, if none of its rows is visible. The first part keeps the
// token: an earlier insert of the whole piece may still arrive, and exactly one of
// the two is stored. After the insert of the part the rows are counted, which says
// which of them it was. Only then are the other parts opened, under tokens of their
// own. A single rejected row passes its token on to the next part, and is
// dead-lettered when that is stored. When many are rejected it is not the rows: the
// lane halts until an operator has fixed the cause. So it does when rows of a
// rejected piece are visible: then a materialized view has failed, and only the
// same token can complete the piece once the view is fixed.
//
// # Failure at each stage
//
// A crash before 3 leaves nothing: the messages are read again, and what is known is
// decided anew, perhaps about another block. A crash between 3 and 7 leaves a claim:
// the next loop reads exactly its messages, drops what the claim drops, finds the
// same tokens, and goes through 4, 5 and 6 again; after an insert it counts the
// rows. If another version numbers the rows of these messages otherwise, the claim is
// decided anew under its tokens, or the lane halts (reclaim.go). Dead-lettering is
// idempotent, and the warehouse recognises the tokens. A failure is treated as a crash
// of the loop alone: the loop ends, waits, and starts from the lane state, so that
// recovery is the normal path.
//
// A compare-and-swap whose outcome is unknown may be applied or not, now or later.
// The loop does not insert before it knows: it reads the lane state again.
//
// A loop that was paused, and whose lane has another owner by now, fails at its next
// compare-and-swap. Until then it can only insert what was claimed, under tokens
// that the other knows of.
//
// # An old claim
//
// The tables remember the tokens of so many parts only. A claim that was left by a
// crash, or whose owner was paused before its insert, is inserted by its tokens only
// while it is certain that they are remembered: as long as less than half of that
// many parts have been inserted since. The pieces of an older one are looked for:
// those that are visible are left, the others inserted. It is not known what the
// views have received of them, so aggregate tables are fed again, and the days are
// named in the lane state for a recount.
//
// # A claim that waits for hours
//
// Rows expire by the day of the claim's stored_at. A claim that is older than an hour,
// and whose open rows are not all visible, gets another one before the next attempt
// (age.go), and its days are named for a recount. Rows of an earlier attempt carry the
// one before, and are counted so. When a token is known and its rows are not there, they
// have expired if the claim is that old; else they are missing, and the lane halts.
//
// # Records that are resent
//
// Engines send at least once. Package dedup says which rows of a block are known
// already, when the block before is stored; that is in the claim, and is never
// decided again. flow.sources is trusted as long as it has received as many rows of
// the lane as the totals say were stored, which is asked before each claim. One that was
// truncated, or restored with or without flow.records, halts the lane. So does a claim of
// which rows that were stored are missing.
//
// # Changes of users and dataset fields
//
// They are in lane 0 among the records, and are applied by a loop of their own
// (changes.go), so that they wait neither for the warehouse nor for a lane that is
// halted. Their audit in the warehouse goes the way of the records.
package ingest
