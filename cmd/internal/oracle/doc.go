// Package oracle computes the expected contents of the tables from the clients' ledgers
// alone. It shares no code with the ingester, the views, or sluice verify, and imports
// only the standard library, so that it cannot share their mistakes. It implements the
// documented meaning of each column (docs/identity.md, docs/analytics.md).
//
//	lines of clients → Add → rows, counters, aggregates → Compare ← rows of the tables
//
// Compare the rows first: a record sent but never acknowledged may be stored or not, and
// only its row shows which. Counters and aggregates follow from the records that were
// acknowledged or have a row.
//
// Lanes, messages, and clocks play no part. Forgotten and expired records are inputs.
package oracle
