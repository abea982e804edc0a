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
// Every client is a source of its own. Some post each record in one request
// until it is acknowledged or given up; exporters of simulated engines post what
// they have posted before, cut into other requests and written in other forms;
// one posts records without identity, under keys.
//
// A run ends with all parts healed, waits until the lanes are empty, and
// compares: of each record of each source how often it was acknowledged (never,
// or at least once) with how often it is stored, in flow.records as it is; the
// counters with the rows, and with what the exporters know that they must come
// to; every fold with the same fold made at once from all records. What was sent
// but never acknowledged may be stored once or not at all. sluice verify must
// agree.
package trial
