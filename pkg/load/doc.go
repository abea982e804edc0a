// Package load is an engine under load: realistic records and an honest client
// that posts them and measures the answers.
//
// All records are those of package simulator. A Generator writes what an engine has
// written over and over, with other positions, keys and times, evenly and without
// end; History plays an engine that writes so many records in a span of time. Either
// way the same config gives the same bytes, and what a request holds is counted, so
// that what is stored can be compared with what was sent.
//
// Run posts such records. It is honest in three ways: a request that has to
// wait for a free connection counts its wait from the moment it was due; one
// that failed is sent again under the same Idempotency-Key, its latency counted
// from the first attempt; and what was never acknowledged is reported and is an
// error.
package load
