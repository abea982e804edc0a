// Package simulate runs whole histories of Sluice in virtual time: the real publisher,
// reader, checkpoints, leases, ingester, and recovery of two apis and two ingesters, over
// a simulated JetStream and a simulated warehouse.
//
//	clients ──▶ publisher ─┐                       ┌─ simulated JetStream (server.go)
//	            ingester ──┼─▶ calls ──▶ driver ───┤
//	            leases   ──┘   (park)    (grants)  └─ simulated warehouse (tables.go)
//
// Every call at the seams parks (driver.go). One driver waits until all goroutines are
// idle, and sorts the parked calls by process and call. From the seed it decides the
// duration and the fault of each, and grants one at a time. So the seed determines the
// order of events, not the scheduler.
//
// A history (history.go) has programs (programs.go), clients (client.go) that note
// acknowledged records, and events (events.go): processes die, pause, and lose their
// connection; lanes fill up and are purged; tokens are forgotten. Days pass (days.go), data is
// set back (setback.go), and operators repair it (operate.go). At its end all faults are
// healed and the lanes drained. Package oracle, which imports only the standard library,
// then compares the warehouse's rows with the clients' notes.
package simulate
