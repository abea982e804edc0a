package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"sluice/cmd/internal/run"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/stream"
)

type tail struct {
	run.Operator
	run.NATS
	Lane int    `default:"0" help:"Number of the lane."`
	From uint64 `help:"Sequence of the first message to print; 0: the next one to arrive."`
}

func (c *tail) Run(ctx context.Context, log *slog.Logger) error {
	return run.UntilStopped(ctx, run.WithStream(ctx, c.Operator, c.NATS, stream.Config{}, log, func(s *stream.Stream) error {
		from := c.From
		if from == 0 {
			var err error
			if from, err = next(s, c.Lane); err != nil {
				return err
			}
		}
		orders, err := s.Forgets(ctx)
		if err != nil {
			return err
		}
		forget := record.NewForgets(orders)
		reader, err := s.OpenLane(ctx, c.Lane, from, 0)
		if err != nil {
			return err
		}
		defer reader.Close()
		out := bufio.NewWriter(os.Stdout)
		for {
			// Flush as soon as the lane has no further message.
			soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			e, err := reader.Next(soon)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				if err := out.Flush(); err != nil {
					return err
				}
				continue
			}
			if err != nil {
				return errors.Join(err, out.Flush())
			}
			if err := printRecords(out, &e, forget); err != nil {
				return err
			}
		}
	}))
}

// next is the sequence of a lane's next message.
func next(s *stream.Stream, lane int) (uint64, error) {
	for _, l := range s.Lanes() {
		if l.Number == lane {
			return l.Last + 1, nil
		}
	}
	return 0, fmt.Errorf("no lane %d: sluice lanes list shows all", lane)
}

// printRecords prints the records of an entry, with those to be deduplicated, without forgotten ones.
func printRecords(out *bufio.Writer, e *flow.Entry, forget record.Forgets) error {
	if e.Topic == stream.TickTopic(e.Lane) {
		return nil
	}
	if e.Topic != stream.RecordTopic(e.Lane) {
		return line(out, e.Body)
	}
	if e.Err != nil {
		return fmt.Errorf("message %d: %w", e.Seq, e.Err)
	}
	for i := range e.Messages {
		skipped := forget.Of(&e.Messages[i])
		if skipped[-1] {
			continue
		}
		if err := record.Each(&e.Messages[i], func(index int, raw []byte) error {
			if skipped[index] {
				return nil
			}
			return line(out, raw)
		}); err != nil {
			return err
		}
	}
	return nil
}

func line(out *bufio.Writer, json []byte) error {
	if _, err := out.Write(json); err != nil {
		return err
	}
	return out.WriteByte('\n')
}
