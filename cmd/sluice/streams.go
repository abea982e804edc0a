package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"sluice/cmd/internal/run"
	"sluice/pkg/flow"
	"sluice/pkg/state"
	"sluice/pkg/stream"
)

type lanes struct {
	List   lanesList   `cmd:"" default:"withargs" help:"Show every lane with its checkpoint and backlog, and the lanes of each source."`
	Add    lanesAdd    `cmd:"" help:"Add a lane, for sources that are first seen from now on; apis and ingesters discover it."`
	Make   lanesMake   `cmd:"" help:"Create or update the streams, where the users of api and ingester may not."`
	Spread lanesSpread `cmd:"" help:"Move a source to other lanes, such as a new one. Its posts get 503 meanwhile, for a few minutes."`
	Reset  lanesReset  `cmd:"" help:"Resume a halted lane, after its stream or its lane state was restored, recreated or lost: names the last message that is unchanged."`
}

type lanesList struct {
	run.Operator
	run.NATS
}

func (c *lanesList) Run(ctx context.Context, log *slog.Logger) error {
	return run.WithStream(ctx, c.Operator, c.NATS, stream.Config{}, log, func(s *stream.Stream) error {
		lags, err := s.Lag(ctx)
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(w, "lane\tlast\tcheckpoint\tbacklog messages\tbacklog bytes\t")
		for _, l := range lags {
			fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t\n", l.Lane, l.Last, l.Done, l.Messages, l.Bytes)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		changes, err := s.ChangeLag(ctx)
		if err != nil {
			return err
		}
		if changes.Waiting > 0 {
			fmt.Printf("\n%d changes of users and dataset fields are not applied, from message %d of lane 0 on\n", changes.Waiting, changes.Next)
		}
		return listSources(s.Sources())
	})
}

// listSources prints which lanes each source has.
func listSources(sources []stream.Source) error {
	if len(sources) == 0 {
		return nil
	}
	fmt.Println()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "source\tlanes\t")
	for _, source := range sources {
		moving := ""
		if source.Move != nil {
			moving = fmt.Sprintf("moving to %s, its posts get 503; if that command was killed: sluice lanes spread %s", numbers(source.Move), short(source.Name))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", short(source.Name), numbers(source.Lanes), moving)
	}
	return w.Flush()
}

// numbers is a list of lanes as an option takes it.
func numbers(lanes []int) string {
	text := make([]string, len(lanes))
	for i, lane := range lanes {
		text[i] = strconv.Itoa(lane)
	}
	return strings.Join(text, ",")
}

type lanesAdd struct {
	run.Operator
	run.NATS
	Streams stream.Config `embed:""`
}

func (c *lanesAdd) Run(ctx context.Context, log *slog.Logger) error {
	return run.WithStream(ctx, c.Operator, c.NATS, c.Streams, log, func(s *stream.Stream) error {
		lane, err := s.AddLane(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("added lane %d, for sources that are first seen from now on\n", lane)
		for _, source := range s.Sources() {
			fmt.Printf("source %s stays on lanes %s: move it with sluice lanes spread %[1]s\n", short(source.Name), numbers(source.Lanes))
		}
		return nil
	})
}

type lanesMake struct {
	run.Operator
	run.NATS
	Streams stream.Config `embed:""`
}

func (c *lanesMake) Run(ctx context.Context, log *slog.Logger) error {
	return run.WithStream(ctx, c.Operator, c.NATS, c.Streams, log, func(s *stream.Stream) error {
		fmt.Printf("streams are up to date; lanes %s\n", numbers(s.LaneNumbers()))
		return nil
	})
}

type lanesSpread struct {
	run.Operator
	run.NATS
	Source  string        `arg:"" help:"The source, as in the tokens and as sluice lanes shows it."`
	Lanes   []int         `help:"Numbers of its lanes, in order, comma-separated, its first lane first; all there are when empty."`
	Timeout time.Duration `default:"15m" help:"Give up after so long: the source stays where it is, and its records are taken again. It takes about 20 s, and as long as ClickHouse is away."`
	Stay    bool          `help:"Only undo an interrupted move: the source stays on its lanes, and its posts are accepted."`
}

func (c *lanesSpread) Run(ctx context.Context, log *slog.Logger) error {
	return run.WithStream(ctx, c.Operator, c.NATS, stream.Config{}, log, func(s *stream.Stream) error {
		if c.Stay {
			return s.Stay(ctx, c.Source)
		}
		to := stream.Spreading{Source: c.Source, Lanes: c.Lanes, Say: func(format string, args ...any) { fmt.Printf(format+"\n", args...) }}
		if len(to.Lanes) == 0 {
			to.Lanes = s.LaneNumbers()
		}
		ctx, cancel := context.WithTimeout(ctx, c.Timeout)
		defer cancel()
		return s.Spread(ctx, to)
	})
}

type lanesReset struct {
	run.Operator
	run.NATS
	Lane int    `required:"" help:"Number of the lane."`
	Last uint64 `required:"" help:"The last message that is unchanged; 0 if the stream was recreated. Messages up to it are recognised, and stored if they are not; those behind it are new. If in doubt name an earlier one: then records without an identity of their own may be stored twice."`
	Yes  bool   `help:"Do it. Without it only what the lane holds is shown."`
}

func (c *lanesReset) Run(ctx context.Context, log *slog.Logger) error {
	return run.WithStream(ctx, c.Operator, c.NATS, stream.Config{}, log, func(s *stream.Stream) error {
		positions := stream.NewLaneStates(s)
		at, err := positions.Read(ctx, c.Lane)
		if err != nil && !errors.Is(err, flow.ErrGap) {
			return err
		}
		fmt.Printf("lane %d: checkpoint %d of %s\n", c.Lane, at.Done, at.StreamID)
		for _, l := range s.Lanes() {
			if l.Number == c.Lane {
				fmt.Printf("lane %d: messages %d to %d of %s\n", c.Lane, l.First, l.Last, l.StreamID())
			}
		}
		if !c.Yes {
			return fmt.Errorf("nothing is changed: add --yes if the messages up to %d are those that the lane had before", c.Last)
		}
		above, err := remembered(ctx, s, c.Lane)
		if err != nil {
			return err
		}
		if at, err = positions.Reset(ctx, c.Lane, c.Last, above); err != nil {
			return err
		}
		fmt.Printf("lane %d resumes after message %d of %s; messages from %d on are of a new incarnation\n", c.Lane, at.Done, at.StreamID, at.Base()+1)
		return nil
	})
}

// remembered is the greatest incarnation in the state store: changes of one that is not
// above it would be skipped.
func remembered(ctx context.Context, s *stream.Stream, lane int) (uint64, error) {
	if lane != 0 {
		return 0, nil
	}
	return state.New(s.State).Incarnation(ctx)
}
