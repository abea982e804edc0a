// Command bench runs Sluice as processes, measures what it promises to cost,
// and writes docs/performance.md. It exits 0 only if after every run exactly
// what was acknowledged is stored; that a goal is missed is a finding, not a
// failure.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"sluice/cmd/internal/bench/measure"
)

type options struct {
	Only         string `enum:",goals,again,scaling,capacity,delay" default:"" help:"Measure only the goals, of these only records that are sent again, only how it scales, or only what sluice capacity reckons with; or how fast one lane is when ClickHouse answers later, which writes performance/delay.md and no other page."`
	Runs         int    `default:"3" help:"Runs of each row, after a warm-up."`
	Records      int64  `default:"1000000" help:"Records of one run; runs that last for a time do not count them."`
	Out          string `type:"path" default:"docs" help:"Folder that gets performance.md, and the plots in performance/."`
	Coefficients string `type:"path" default:"pkg/capacity/coefficients.json" help:"File that gets what sluice capacity reckons with."`

	Short bool `help:"Only try whether all can be measured, in half a minute: the figures say little."`
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("bench"), kong.Description("Measures Sluice and writes docs/performance.md."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	_, err := measure.Run(ctx, measure.Config{
		Only: o.Only, Runs: o.Runs, Records: o.Records, Out: o.Out, Short: o.Short,
		Coefficients: o.Coefficients,
		Command:      command(os.Args[1:]), Log: os.Stdout,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command is what to type to do the same again.
func command(args []string) string {
	if len(args) == 0 {
		return "make bench"
	}
	return fmt.Sprintf("make bench ARGS=%q", strings.Join(args, " "))
}
