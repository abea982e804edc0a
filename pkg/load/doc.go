// Package load is an engine under load: realistic records and an honest client
// that posts them and measures the answers.
//
// A Generator plays process instances, several at a time and on several
// partitions, and writes what an exporter of a workflow engine would send of
// them. The same seed and start give the same bytes. It counts what it writes,
// so that what is stored can be compared with what was sent.
//
// Run posts such records. It is honest in three ways: a request that has to
// wait for a free connection counts its wait from the moment it was due; one
// that failed is sent again under the same Idempotency-Key, its latency counted
// from the first attempt; and what was never acknowledged is reported and is an
// error.
package load
