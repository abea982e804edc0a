// Package oracle says what the tables must hold, from the records alone that clients
// wrote down when they were acknowledged. It shares no code with the ingester, the views,
// or sluice verify, and imports the standard library only: a mistake that they share is
// none of its own. It follows the documented meaning of each column (docs/identity.md,
// docs/analytics.md) and changes together with that.
//
//	lines of clients → Add → rows, counters, aggregates → Compare ← rows as the tables have them
//
// Compare the rows first: a record that was sent and never acknowledged may be stored or
// not, and only its row says which. Counters and aggregates follow from the records that
// were acknowledged and those whose row is there.
//
// The oracle knows nothing of lanes, messages, or clocks. What a run has forgotten or let
// expire is told to it.
package oracle
