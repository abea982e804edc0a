// Command chaos runs Sluice as processes under load, does something to it, and then
// compares every acknowledged record with the tables. It exits 0 only if none is
// missing and none is there twice. What it does is a scenario:
//
//	chaos    breaks it in every way it can, by chance, and heals it
//	upgrade  replaces its processes one after the other by another version, and back
//	soak     nothing, for a long time, and watches what must not grow
//
// The schedule of faults follows from the seed alone, so that a run that failed can be
// repeated; what a fault meets depends on timing too.
//
// Every client is a source of its own. Some post each record in one request until it is
// acknowledged or given up; exporters of simulated engines post what they have posted
// before, cut into other requests and written in other forms; one posts records without
// identity, under keys.
//
// Every client writes down what it has posted and whether that was acknowledged, in a
// ledger of its source. A run ends with all processes healed, waits until the lanes are
// empty, and compares row by row what the oracle (cmd/internal/oracle) computes from these
// ledgers alone: flow.records as it is, every counter, every view of an aggregate. What was
// sent but never acknowledged may be stored once or not at all. sluice verify must agree.
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
	Chaos   Config  `cmd:"" default:"withargs" help:"Break a running Sluice and look for what was lost or duplicated."`
	Upgrade Upgrade `cmd:"" help:"Roll a running Sluice to another version and back, under load."`
	Soak    Soak    `cmd:"" help:"Run Sluice under a steady load and watch what must not grow."`
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

// report prints what a run has found.
func report(result Result, err error) error {
	if err == nil || errors.Is(err, ErrBroken) {
		fmt.Println(result)
	}
	return err
}
