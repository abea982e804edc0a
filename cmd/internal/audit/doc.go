// Package audit is the room of the operator's checks and repairs of the tables:
//
//	verify   accounts for every accepted record: stored, deduplicated, dead-lettered, forgotten, or backlog
//	recount  recomputes daily counters from the records
//	rebuild  recreates all tables from the log and from rows that are older than it
//
// They read lanes and tables as any client does, online, and change a lane by the same
// compare-and-swap as an ingester.
package audit
