package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"text/tabwriter"

	"sluice/cmd/internal/run"
	"sluice/pkg/record"
	"sluice/pkg/stream"
)

type lanes struct {
	List  lanesList  `cmd:"" default:"withargs" help:"Show every lane: what it holds and what of it waits to be stored."`
	Add   lanesAdd   `cmd:"" help:"Add a lane; apis and ingesters find it by themselves."`
	Reset lanesReset `cmd:"" help:"Say where a halted lane goes on, after its stream was made again or restored from a backup."`
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

type lanesReset struct {
	run.NATS
	Lane int    `required:"" help:"Number of the lane."`
	Done uint64 `required:"" help:"Go on after this message of the stream as it is now; those before are not stored again."`
	Yes  bool   `help:"Do it. What is before --done and not stored is lost, what is after it and was stored is stored twice."`
}

func (c *lanesReset) Run(ctx context.Context, log *slog.Logger) error {
	return run.WithStream(ctx, c.NATS, run.Streams{}, log, func(s *stream.Stream) error {
		positions := stream.NewPositions(s)
		at, err := positions.Read(ctx, c.Lane)
		if err != nil && !errors.Is(err, record.ErrGap) {
			return err
		}
		fmt.Printf("lane %d stands at message %d of %s\n", c.Lane, at.Done, at.Stream)
		if !c.Yes {
			return fmt.Errorf("nothing is changed: give --yes to make it go on after message %d", c.Done)
		}
		if at, err = positions.Reset(ctx, c.Lane, c.Done); err != nil {
			return err
		}
		fmt.Printf("lane %d goes on after message %d of %s\n", c.Lane, at.Done, at.Stream)
		return nil
	})
}
