// Package trial breaks a running Sluice and looks for what was lost or doubled.
//
//	load ─▶ link ─▶ api ×2 ─▶ links ─▶ NATS ×1 or ×3 ◀─ links ─ ingester ×2 ─▶ links ─▶ engine
//	 │                                                                                  │
//	 └─ what was acknowledged ────────────▶ compare ◀──────────── what is in the tables ┘
//
// Every box is a process of its own, and every link a proxy that can cut, delay
// and stall what goes through it. The schedule of faults follows from the seed
// alone, so that a run that failed can be run again; what a fault meets depends
// on timing too.
//
// A run ends with all parts healed, waits until the lanes are empty, and
// compares: of each record how often it was acknowledged (never or once) with
// how often it is stored, in flow.records as it is and in flow.counts_1m. What
// was sent but never acknowledged may be stored once or not at all.
package trial
