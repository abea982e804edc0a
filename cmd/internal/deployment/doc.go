// Package deployment starts Sluice as processes, on free ports of loopback and with
// all data in one folder, for tests, trials, and measurements.
//
//	clients ─▶ link ─▶ api … ─▶ links ─▶ NATS ×1 or ×3 ◀─ links ─ ingester … ─▶ links ─▶ engine
//
// A Process can be killed, paused, stopped, started again, and replaced by another
// version. A Link, where Config asks for them, is a TCP proxy that cuts, delays, and
// stalls connections. Waits are methods that fail with the last state seen.
package deployment
