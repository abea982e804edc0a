// Package capacity says how many machines a rate of records takes: from what a
// record was measured to cost, to apis, lanes, NATS nodes, ingesters and shards.
//
//	make bench ─▶ coefficients.json ─▶ Fit ─▶ Model ─▶ Plan ─▶ sluice capacity
//
// What a process spends is taken to be a sum: so much for every record, request,
// entry of the log, block of the tables and second. The shares are fitted to the
// measured points.
package capacity
