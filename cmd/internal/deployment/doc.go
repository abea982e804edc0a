// Package deployment starts Sluice as processes for tests, trials, and measurements, on free
// ports of loopback, with all data in one folder.
//
//	clients ─▶ link ─▶ api … ─▶ links ─▶ NATS ×1 or ×3 ◀─ links ─ ingester … ─▶ links ─▶ engine
//
// A Process can be killed, paused, stopped, restarted, and replaced by another version. A
// Link, where Config enables them, is a TCP proxy that cuts, delays, and stalls connections.
// Wait methods fail with the last state seen.
package deployment
