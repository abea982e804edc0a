// Package ingest moves records from the stream to the warehouse, each exactly once, in blocks. It does no I/O
// of its own.
//
//	Lanes ──▶ fill ──▶ store ──▶ Tables       rows
//	   │        │        ├─────▶ LaneStates   the checkpoint, and the claim
//	   │        │        ├─────▶ DeadLetters  undecodable and rejected records
//	   │        │        └─────▶ Audits       the audit of changes
//	   │        └ decodes the next block while the last one is stored
//	   └──▶ changes ──▶ Changes   users and dataset fields, with its own checkpoint
//
// # Life of a block
//
// A lane has one loop (lane.go), in the process that holds its lease.
//
//  1. fill reads messages and decodes them into columns (fill.go, block.go). The block is closed when it is
//     full or old enough, when store is idle and nothing is waiting, at a 25th month, and after a move marker.
//  2. decide (store.go): which of its records are deduplicated (package dedup).
//  3. claim: a compare-and-swap writes the block's range, the hash of its messages, its dropped rows, its
//     stored_at, and its pieces into the lane state. From here on the block is fixed: the next owner of the
//     lane stores the same rows of the same messages under the same tokens.
//  4. dead-letter what could not be decoded.
//  5. insert its pieces, each under its token (store.go); pieces.go judges inserts that failed or may be
//     repeated.
//  6. write the audit of changes.
//  7. done: the claim of the next block records this one as done and adds its counts to the lane's totals.
//     Without a next block the lane state is written by itself.
//
// # Pieces
//
// Rows are numbered by month, then by place. A piece is rows of one month and one insert. An ordinary block is
// one piece; a full block with more waiting is several, inserted concurrently; a block of several months has one
// per month.
//
// One loop stores them: it inserts the first open pieces, passes the outcome of each to flow.Claim.Next, and
// writes the result into the lane state before the next round. The last round is not written: the next claim
// records it. So an ordinary block costs one compare-and-swap and one insert.
//
// A piece that ClickHouse rejects for its data, or that exceeds a memory or time limit, is cut in two if none of
// its rows is visible. The first part keeps the token: an earlier insert of the whole piece may still arrive,
// and exactly one of the two is stored. Counting rows after the insert of the part tells which. Only then are
// the other parts opened, under tokens of their own. A single rejected row passes its token on to the next part,
// and is dead-lettered once that is stored. If many rows are rejected the cause is not the rows: the lane halts
// until an operator has fixed it. It also halts if a materialized view has failed: only
// the same token can complete the piece once the view is fixed. If the table rejects rows that are visible, a
// constraint is newer than the insert that stored them: the piece is completed as one of an old claim.
//
// # Failure at each stage
//
// A crash before 3 leaves nothing: the messages are read and decided again, perhaps in another block. A crash
// between 3 and 7 leaves a claim: the next loop reads exactly its messages, drops the claim's rows, computes the
// same tokens, and repeats 4, 5, and 6; after an insert it counts the rows. If another version numbers the rows
// differently, the claim is decided again under its tokens, or the lane halts (reclaim.go). If the claim is lost or
// dropped, its messages are decided again once no insert of the lane is running. Dead-lettering is
// idempotent, and the warehouse deduplicates by token. A failure is treated as a crash of the loop: it ends, waits,
// and starts from the lane state, so that recovery is the normal path.
//
// A compare-and-swap with an unknown outcome may be applied now or later. The loop does not insert before it has
// read the lane state again.
//
// A loop that was paused and whose lane has another owner fails at its next compare-and-swap. Until then it can
// only insert claimed rows, under tokens that the new owner uses too.
//
// # An old claim
//
// The tables remember a limited number of tokens. A claim left by a crash, or whose owner was paused before its
// insert, is inserted by its tokens only while they are certainly remembered: while fewer than half of that
// number of parts have been inserted since. Of older claims, visible pieces are kept and the others inserted. It
// is unknown which views received them, so aggregate tables are fed again, and the days are listed in the lane
// state for a recount.
//
// # A claim older than an hour
//
// Rows expire by the day of the claim's stored_at. A claim older than an hour, whose open rows are not all visible,
// gets a new stored_at before the next attempt (age.go), and its days are listed for a recount. Rows of earlier
// attempts carry the old one and are counted so. If a token is deduplicated and its rows are absent, they have
// expired if the claim is that old; else they are missing, and the lane halts.
//
// # Resent records
//
// Engines deliver at least once. Package dedup decides which rows of a block are deduplicated, once the block
// before is stored; the claim records it, and it is never decided again. flow.sources is trusted while it counts
// as many rows of the lane as the totals, which is checked before each claim. If it was truncated, or restored
// with or without flow.records, the lane halts; so it does if stored rows of a claim are missing.
//
// # Changes of users and dataset fields
//
// They are in lane 0 among the records, and applied by a loop of their own (changes.go), which waits neither for
// the warehouse nor for a halted lane. Their audit takes the path of the records.
package ingest
