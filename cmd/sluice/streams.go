package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"text/tabwriter"

	"sluice/cmd/internal/run"
	"sluice/pkg/stream"
)

type lanes struct {
	List lanesList `cmd:"" default:"withargs" help:"Show every lane: what it holds and what of it waits to be stored."`
	Add  lanesAdd  `cmd:"" help:"Add a lane; apis and ingesters find it by themselves."`
}

type lanesList struct {
	run.NATS
}

func (c *lanesList) Run(ctx context.Context, log *slog.Logger) error {
	return run.WithStream(ctx, c.NATS, run.Streams{}, log, func(s *stream.Stream) error {
		lags, err := s.Lag(ctx)
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(w, "lane\tlast\tdone\twaiting messages\twaiting bytes\t")
		for _, l := range lags {
			fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t\n", l.Lane, l.Last, l.Done, l.Messages, l.Bytes)
		}
		return w.Flush()
	})
}

type lanesAdd struct {
	run.NATS
	run.Streams
}

func (c *lanesAdd) Run(ctx context.Context, log *slog.Logger) error {
	return run.WithStream(ctx, c.NATS, c.Streams, log, func(s *stream.Stream) error {
		lane, err := s.AddLane(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("lane %d is there; it takes records once every api knows it\n", lane)
		return nil
	})
}
