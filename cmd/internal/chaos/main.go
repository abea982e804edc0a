// Command chaos runs Sluice as processes under load, breaks it for a while in
// every way it can, heals it, and then compares every acknowledged record with
// the tables. It exits 0 only if none is missing and none is there twice.
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
// A run ends with all services healed, waits until the lanes are empty, and
// compares: of each record of each source how often it was acknowledged (never,
// or at least once) with how often it is stored, in flow.records as it is; the
// counters with the rows, and with what the exporters know that they must come
// to; every fold with the same fold made at once from all records. What was sent
// but never acknowledged may be stored once or not at all. sluice verify must
// agree.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

func main() { os.Exit(run()) }

func run() int {
	cfg := Config{Journal: os.Stdout}
	kong.Parse(&cfg, kong.Name("chaos"), kong.Description("Breaks a running Sluice and looks for what was lost or duplicated."))
	if cfg.Seed == 0 {
		cfg.Seed = rand.Uint64N(1_000_000)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	result, err := Run(ctx, cfg)
	if err == nil || errors.Is(err, ErrBroken) {
		fmt.Println(result)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 1
	}
	return 0
}
