// Package oracle computes the expected contents of the tables from the clients' ledgers
// alone, by the documented meaning of each column (docs/identity.md, docs/analytics.md).
// It shares no code with the ingester, the views, or sluice verify, and imports only the
// standard library, so it cannot share their errors.
//
//	lines of clients → Add → rows, counters, aggregates → Compare ← rows of the tables
//
// Compare the rows first: only its row shows whether an unacknowledged record is stored.
// Counters and aggregates follow from the records that were acknowledged or have a row.
//
// Lanes, messages, and clocks are not modelled. Forgotten and expired records are inputs.
package oracle
