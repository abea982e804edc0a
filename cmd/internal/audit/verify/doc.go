// Package verify accounts for every accepted record, by the messages in the stream and
// the rows in ClickHouse. Purged messages are accounted for by the totals in the lane
// states.
//
//	accepted = stored + deduplicated + dead-lettered + forgotten + backlog     (+ replayed + dropped, by an operator)
//
// # Procedure, while records flow
//
//  1. Rows are counted, for the comparison with the counters.
//  2. Every lane state is read. A claimed block may be stored or not: it is in doubt.
//     Verify waits for it, up to Config.Wait. Then every message up to the checkpoint is
//     settled, and later ones, up to the last message at that time, are backlog.
//  3. The outcomes of dead letters are read. A letter that is deleted meanwhile has left
//     a note first.
//  4. Messages still to be read are pinned against purging. If a purge in progress takes
//     some of them, verify starts over.
//  5. Every message is read and decoded like in the ingester. Expected rows go into the
//     sum of their run of messages, and ClickHouse computes the same sums of its rows.
//     Only runs that differ are read again, row by row, to name the differences. A row
//     stored before a migration added a column is compared as that older program read it.
//  6. A record without a row of its own is deduplicated if the same record, by the rules
//     of the ingester, has one; else it is missing.
//  7. The totals of a lane state count the records of all messages up to the checkpoint,
//     purged or not, and the rows by stored day. After subtracting the messages read, the
//     rest must equal the table's rows of the others; if all were read, it must be zero.
//  8. Records with several rows are searched in the whole table.
//  9. Counters must lie between the rows of step 1 and the rows now. Otherwise, and for
//     days that a lane state lists, a recount is due.
//
// Rows stored up to the expiry line take part in no comparison: messages are read from
// behind the last one whose rows may have expired, and rows, counters, and totals are
// those of later stored days. So a row missing from a kept day never counts as expired.
//
// Memory is bounded: one message, the sums of one segment, the records of one search, and
// the outcomes of dead letters.
package verify
