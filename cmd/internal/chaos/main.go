// Command chaos runs Sluice as processes under load, breaks it for a while in
// every way it can, heals it, and then compares every acknowledged record with
// the tables. It exits 0 only if none is missing and none is there twice.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"sluice/cmd/internal/chaos/trial"
)

type options struct {
	For            time.Duration `default:"30m" help:"How long to break things under load."`
	Seed           uint64        `help:"Decides faults and records; a new one when 0. The same seed has the same schedule."`
	NATS           int           `name:"nats" enum:"1,3" default:"1" help:"NATS servers: 1, or 3 with three copies of every stream."`
	Rate           float64       `default:"6000" help:"Records per second to post."`
	Every          time.Duration `default:"2.5s" help:"Mean time between two faults."`
	StreamMaxBytes int64         `default:"1073741824" help:"Disk budget of a lane in bytes; little of it makes 429s."`
	SmallDisk      bool          `help:"Fill the disks of NATS and of the engine too. Needs root: it mounts file systems in memory."`
	Brokers        bool          `help:"Only the exporters of a simulated Camunda cluster of three partitions post, as the real ones do; brokers fail too."`
	Outage         time.Duration `help:"Instead of faults at random: stop the engine for so long in the middle of the run."`
	RepeatWindow   time.Duration `default:"5m" help:"Window in which the programs recognise a repeated request, shorter than theirs, so that a run outlives it."`
	Dir            string        `type:"path" help:"Folder for data and logs; a temporary one when empty. It stays when something is wrong."`
	Keep           bool          `help:"Keep the folder in any case."`
}

func main() { os.Exit(run()) }

func run() int {
	var o options
	kong.Parse(&o, kong.Description("Breaks a running Sluice and looks for what was lost or doubled."))
	if o.Seed == 0 {
		o.Seed = rand.Uint64N(1_000_000)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	result, err := trial.Run(ctx, trial.Config{
		For: o.For, Seed: o.Seed, NATS: o.NATS, Rate: o.Rate, Every: o.Every, StreamMaxBytes: o.StreamMaxBytes,
		SmallDisk: o.SmallDisk, Brokers: o.Brokers, Outage: o.Outage, RepeatWindow: o.RepeatWindow, Dir: o.Dir, Keep: o.Keep, Journal: os.Stdout,
	})
	if err == nil || errors.Is(err, trial.ErrBroken) {
		fmt.Println(result)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 1
	}
	return 0
}
