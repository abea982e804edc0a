// Package simulate runs whole histories of Sluice in virtual time: the real publisher,
// reader, checkpoints, leases, ingester, and recovery of two apis and two ingesters, over
// a simulated JetStream and a simulated warehouse.
//
//	clients ──▶ publisher ─┐                       ┌─ simulated JetStream (server.go)
//	            ingester ──┼─▶ calls ──▶ driver ───┤
//	            leases   ──┘   (park)    (grants)  └─ simulated warehouse (tables.go)
//
// Every call at the seams parks (driver.go). One driver waits until nothing moves, sorts
// the parked calls by process and call, decides by the seed how long each takes and what
// goes wrong with it, and grants one at a time. So the order of events is the seed's, and
// not the scheduler's.
//
// A history (history.go) has programs (programs.go), clients (client.go) that write down
// what was acknowledged, and events (events.go): processes die, stand still, and lose their
// connection; lanes fill up and are purged; tokens are forgotten. At its end everything is
// healed and drained, and the rows of the warehouse are compared with the clients' notes by
// package oracle, which imports the standard library only.
package simulate
