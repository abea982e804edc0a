// Package verify accounts for every record the lanes have accepted, by what
// the stream holds and what ClickHouse holds, and by nothing that either has
// been told.
//
//	accepted = stored + dead + waiting     (+ replayed + dropped, by an operator)
//
// # How it is done while records flow
//
//  1. Rows are counted, for the comparison with the counters.
//  2. The position of every lane is read. A block that is claimed may be in the
//     table or not: it is in doubt. Verify waits until it is done, for a while.
//     Then every message up to there is settled for good, and what comes after
//     it, up to the last message at that time, is waiting.
//  3. The fates of what was set aside are read. All of it up to there is known
//     now; a letter that leaves meanwhile has left a note first.
//  4. Every message is read and decoded, as the ingester does it. What should be
//     a row goes into the sum of its run of messages; ClickHouse is asked for
//     the same sums of its rows. Only runs that differ are read again, row by
//     row, to name what is wrong.
//  5. A record without a row of its own is not missing when the same record,
//     sent again, has one: ReplacingMergeTree keeps one of two. It is stored,
//     and counted as merged.
//  6. Counters are compared with the rows of 1 and with rows counted now: what
//     they count must lie between.
//
// Memory is bounded whatever the lanes hold: one message, the sums of one
// segment, and what was set aside.
package verify
