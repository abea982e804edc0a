// Command simulate prints the records of a simulated engine, one per line: the
// same options give the same bytes. docs/notebooks/ works on them.
package main

import (
	"bufio"
	"fmt"
	"os"
	"time"

	"github.com/alecthomas/kong"

	"sluice/pkg/load/simulator"
)

type options struct {
	Seed      uint64        `default:"7" help:"Decides what happens."`
	Start     time.Time     `default:"2026-01-12T08:00:00Z" help:"When the first instance begins."`
	For       time.Duration `default:"3h" help:"How long to look at the engine."`
	Every     time.Duration `default:"1m" help:"Between the beginnings of two instances."`
	Instances int           `default:"110" help:"To begin, called ones not counted."`
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("simulate"), kong.Description("Prints the records of a simulated workflow engine."))
	if err := o.run(); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1)
	}
}

func (o options) run() error {
	out := bufio.NewWriter(os.Stdout)
	engine := simulator.New(simulator.Config{Seed: o.Seed, Start: o.Start, Every: o.Every, Instances: o.Instances, Commands: true})
	until := o.Start.Add(o.For)
	for r, more := engine.NextBy(until); more; r, more = engine.NextBy(until) {
		if _, err := out.Write(append(r.JSON, '\n')); err != nil {
			return err
		}
	}
	return out.Flush()
}
