// Package audit is the room of what operators prove and mend the tables with:
//
//	verify   accounts for every accepted record: stored, repeated, dead or waiting
//	recount  makes the counters of days again from the records
//	rebuild  makes all tables again from the log and from what is older than it
//
// None of it is on the way of a record. It reads lanes and tables as any client does,
// while records flow, and changes a lane by the same compare-and-swap as an ingester.
package audit
