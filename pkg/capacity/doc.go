// Package capacity computes the machines for a rate of records, from the measured cost of a
// record: apis, lanes, NATS nodes, ingesters, and shards.
//
//	make bench ─▶ coefficients.json ─▶ Fit ─▶ Model ─▶ Plan ─▶ sluice capacity
//
// The CPU time of a process is modelled as a sum: a cost per record, request, entry, block,
// and second, fitted to the measured points.
package capacity
