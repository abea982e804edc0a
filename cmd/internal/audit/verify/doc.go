// Package verify accounts for every record the lanes have accepted, by what
// the stream holds and what ClickHouse holds. What was purged from the stream is
// proved by the totals in the positions of the lanes.
//
//	accepted = stored + deduplicated + dead-lettered + forgotten + backlog     (+ replayed + dropped, by an operator)
//
// # How it is done while records flow
//
//  1. Rows are counted, for the comparison with the counters.
//  2. The position of every lane is read. A block that is claimed may be in the
//     table or not: it is in doubt. Verify waits until it is done, for a while.
//     Then every message up to there is settled for good, and what comes after
//     it, up to the last message at that time, is waiting.
//  3. The outcomes of what was set aside are read. All of it up to there is known
//     now; a letter that leaves meanwhile has left a note first.
//  4. What is still to be read is pinned, so that it is not purged. If a purge that had
//     begun takes some of it all the same, all begins anew.
//  5. Every message is read and decoded, as the ingester does it. What should be
//     a row goes into the sum of its run of messages; ClickHouse is asked for
//     the same sums of its rows. Only runs that differ are read again, row by
//     row, to name what is wrong. A row that a program has stored before a
//     migration added a column is compared with the record as that program read it.
//  6. A record without a row of its own is repeated when the same record, by the
//     rules of the ingester, has one; else it is missing.
//  7. The totals in the position of the lane count the records of all messages
//     up to there, purged or not, and the rows by the day on which they were
//     stored. What they count beyond what was read must be what the table has
//     rows of; where every message was read, they must agree.
//  8. Records that have two rows are looked for in the whole table.
//  9. Counters are compared with the rows of 1 and with rows counted now: what
//     they count must lie between. Where they do not, and where an ingester has
//     named a day in its position, a recount is due.
//
// Days expire. What was stored up to the expiry line is in no comparison: messages are
// read from behind the last one whose rows may have expired, rows, counters, and totals are
// those of later stored days. So the day is the same for all of them, and what is missing of a
// day that is kept is never taken for expired.
//
// Memory is bounded whatever the lanes hold: one message, the sums of one
// segment, the records of one search, and what was set aside.
package verify
