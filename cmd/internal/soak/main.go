// Command soak runs Sluice as processes under a steady load for a long time
// and watches what should not grow: memory, goroutines, open files, parts in
// ClickHouse, what waits. In the end every record is there once. It exits 0
// only if nothing grew beyond its bound and the counts are exact.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"sluice/cmd/internal/soak/steady"
)

type options struct {
	For       time.Duration `default:"30m" help:"How long to post."`
	Rate      float64       `default:"3000" help:"Records per second."`
	Every     time.Duration `default:"10s" help:"Time between two samples."`
	Freshness time.Duration `default:"1s" help:"Longest time from when 99 of 100 records are taken in until they can be queried."`
	Seed      uint64        `default:"1" help:"Decides the records."`
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("soak"), kong.Description("Runs Sluice under a steady load and watches what should not grow."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := steady.Run(ctx, steady.Config{
		For: o.For, Rate: o.Rate, Every: o.Every, Freshness: o.Freshness, Seed: o.Seed, Out: os.Stdout,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}
