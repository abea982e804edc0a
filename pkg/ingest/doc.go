// Package ingest moves records from the stream to the warehouse, each exactly
// once, in blocks. It does no input or output of its own.
//
//	Source ──▶ fill ──▶ store ──▶ Warehouse
//	             │        ├─────▶ Positions    where the lane stands
//	             │        ├─────▶ DeadLetters  what can not be stored
//	             │        └─────▶ Changes      of users and dataset fields
//	             └ decodes the next block while the last one is stored
//
// # Life of a block
//
// A lane is worked on by one loop, in the process that holds its lease.
//
//  1. fill reads messages and decodes them into columns. The block is closed
//     when it is full or old enough, or when nothing is waiting and nothing is
//     being stored.
//  2. claim: the position of the lane gets the range of the block and its
//     token by compare-and-swap. From here on the block is fixed: whoever owns
//     the lane next stores the same messages under the same token.
//  3. set aside what could not be decoded.
//  4. insert the rows under the token.
//  5. apply the changes.
//  6. done: the claim of the next block records this one as done. Without a
//     next one the position is moved for itself.
//
// # Let's consider failure at each stage
//
// A crash before 2 leaves nothing: the messages are read again. A crash
// between 2 and 6 leaves a claim: the next loop reads exactly its messages,
// finds the same token, and goes through 3, 4 and 5 again. Setting aside and
// applying are idempotent, and the warehouse recognises the token. A failure
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
// # A block that the warehouse refuses for its data
//
// It is divided: the claim is narrowed to fewer rows, with a token of its own,
// by compare-and-swap, before those rows are inserted; down to the one row
// that is refused, which is set aside. Each piece is a claim like any other,
// so a crash leaves what it leaves above. A block of which the table already
// holds rows is never divided: then a materialized view has refused what the
// table took, and only the same token can complete it, once the view is
// mended. The lane halts until then.
package ingest
