// Command chaos runs Sluice as processes under load, injects faults, and then compares
// every acknowledged record with the tables. It exits 0 only if no record is missing or
// duplicated. The scenarios are:
//
//	chaos    injects random faults and heals them
//	upgrade  replaces the processes by another version, one by one, and back
//	soak     runs undisturbed for long, and checks that nothing grows
//
// The seed alone determines the schedule of faults, so a failed run can be repeated; the
// effect of a fault also depends on timing.
//
// Every client is a source of its own. Some post each record in one request until it is
// acknowledged or abandoned. Exporters of simulated engines also resend records, cut into
// other requests and in other forms. One client posts records without identity, under
// idempotency keys.
//
// Every client writes its records and their outcomes to a ledger. A run heals all faults,
// waits until the lanes are empty, and compares the tables row by row with the oracle's
// computation (cmd/internal/oracle) from the ledgers alone: flow.records without FINAL,
// every counter, every aggregate view. Records that were never acknowledged may be stored
// once or not at all. sluice verify must agree.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

type commands struct {
	Chaos   Config  `cmd:"" default:"withargs" help:"Inject faults under load, and find lost or duplicated records."`
	Upgrade Upgrade `cmd:"" help:"Roll a running Sluice to another version and back, under load."`
	Soak    Soak    `cmd:"" help:"Run Sluice under a steady load and check that memory, files and delays do not grow."`
}

func main() {
	var c commands
	command := kong.Parse(&c, kong.Name("chaos"), kong.Description("Trials of a running Sluice."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	command.BindTo(ctx, (*context.Context)(nil))
	if err := command.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

func report(result Result, err error) error {
	if err == nil || errors.Is(err, ErrBroken) {
		fmt.Println(result)
	}
	return err
}
