// Package audit contains the operator's checks and repairs of the tables:
//
//	verify   accounts for every accepted record: stored, deduplicated, dead-lettered, forgotten, or backlog
//	recount  recomputes daily counters from the records
//	rebuild  recreates all tables from the log and from rows older than the log
//
// They run online, and change a lane state by the same compare-and-swap as an ingester.
package audit
