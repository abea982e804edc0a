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
	Add    lanesAdd    `cmd:"" help:"Add a lane for new sources; apis and ingesters discover it."`
	Make   lanesMake   `cmd:"" help:"Create or update the streams; required before api and ingester if their NATS users lack the permission."`
	Spread lanesSpread `cmd:"" help:"Move a source to other lanes, such as a new one. Its posts get 503 meanwhile, for a few minutes."`
	Reset  lanesReset  `cmd:"" help:"Resume a halted lane after its stream or its lane state was restored, recreated or lost; --last is the last unchanged message."`
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
			fmt.Printf("\n%d changes of users and dataset fields wait, from message %d of lane 0\n", changes.Waiting, changes.Next)
		}
		return listSources(s.Sources())
	})
}

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
			moving = fmt.Sprintf("moving to %s, posts get 503; finish an interrupted move with sluice lanes spread %s", numbers(source.Move), short(source.Name))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", short(source.Name), numbers(source.Lanes), moving)
	}
	return w.Flush()
}

// numbers formats lanes as --lanes takes them.
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
		fmt.Printf("added lane %d for new sources\n", lane)
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
	Source  string        `arg:"" help:"Name of the source, as listed by sluice lanes list."`
	Lanes   []int         `help:"New lanes of the source, comma-separated, beginning with its current first lane; all lanes when empty."`
	Timeout time.Duration `default:"15m" help:"Give up after this time: the source stays on its lanes, and its posts are accepted. A move takes about 20 s plus any outage of ClickHouse."`
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
	Last uint64 `required:"" help:"Sequence of the last unchanged message; 0 if the stream was recreated. Messages up to it, and up to a checkpoint whose message is in the lane, are not stored again; missing ones are stored. Later messages are new. If in doubt, give an earlier one: at worst, records without a deduplication key are stored twice."`
	Yes  bool   `help:"Apply the reset. Without it the command only prints the lane's messages and checkpoint."`
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
			return fmt.Errorf("nothing was changed: add --yes if the messages up to %d are unchanged", c.Last)
		}
		above, err := lastIncarnation(ctx, s, c.Lane)
		if err != nil {
			return err
		}
		if at, err = positions.Reset(ctx, c.Lane, c.Last, above); err != nil {
			return err
		}
		fmt.Printf("lane %d resumes after message %d of %s; messages from %d have a new incarnation\n", c.Lane, at.Done, at.StreamID, at.Base()+1)
		return nil
	})
}

// lastIncarnation is the greatest incarnation in the state store. The next one must be
// above it, or its changes would be skipped.
func lastIncarnation(ctx context.Context, s *stream.Stream, lane int) (uint64, error) {
	if lane != 0 {
		return 0, nil
	}
	return state.New(s.State).Incarnation(ctx)
}
