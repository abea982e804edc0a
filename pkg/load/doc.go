// Package load simulates an engine under load: realistic records, and a client that posts
// them and measures latencies without bias.
//
// All records come from package simulator. A Generator repeats simulated records with other
// positions, keys, and times, evenly and without end. History simulates an engine that
// writes a number of records in a time span. The same config gives the same bytes; totals
// allow comparing stored with sent records.
//
// Run posts them. The latency of a request that waits for a free connection counts from its
// due time. A failed request is retried under the same Idempotency-Key, and its latency
// counts from the first attempt. Unacknowledged records are reported and are an error.
package load
