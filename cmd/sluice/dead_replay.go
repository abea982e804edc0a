package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"os/user"
	"sync"

	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/run"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// letterChoice is what replay and drop work on.
type letterChoice struct {
	Numbers []uint64 `arg:"" optional:"" help:"Numbers of the letters, as listed; without any, those the filters pick."`
	letterFilter
	All    bool `help:"All of them." env:"-"`
	Limit  int  `default:"0" help:"Most letters to take, oldest first; 0 for all."`
	DryRun bool `help:"Only list what would be done."`
	run.Operator
	run.NATS
}

func (c *letterChoice) Validate() error {
	named, filtered := len(c.Numbers) > 0, !c.empty()
	switch {
	case named && (filtered || c.All):
		return errors.New("give numbers, or filters, not both")
	case !named && !filtered && !c.All:
		return errors.New("which ones? give numbers, filters, or --all")
	}
	return nil
}

func (c *letterChoice) chosen(ctx context.Context, letters *stream.DeadLetters) iter.Seq2[stream.DeadLetter, error] {
	if len(c.Numbers) == 0 {
		return c.letters(ctx, letters, c.Limit)
	}
	return func(yield func(stream.DeadLetter, error) bool) {
		for _, number := range c.Numbers {
			if d, err := letter(ctx, letters, number); !yield(d, err) {
				return
			}
		}
	}
}

// lettersAtOnce is how many letters are worked on at a time, so that their
// messages share the commits of their lanes.
const lettersAtOnce = 16

// each calls do for every chosen letter, several at a time. What is wrong with
// one letter is said and does not keep the others from it; when NATS is away
// or full, no more are begun.
func (c *letterChoice) each(ctx context.Context, letters *stream.DeadLetters, doing string, do func(context.Context, stream.DeadLetter) error) (failed int, err error) {
	bar := newBar(-1, doing)
	defer func() { err = errors.Join(err, bar.Finish()) }()
	g, run := errgroup.WithContext(ctx)
	g.SetLimit(lettersAtOnce)
	var mu sync.Mutex
	for d, err := range c.chosen(run, letters) {
		if err != nil {
			return failed, errors.Join(g.Wait(), err)
		}
		g.Go(func() error {
			err := do(run, d)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				return bar.Add(1)
			}
			if run.Err() != nil || errors.Is(err, flow.ErrFull) || errors.Is(err, flow.ErrUnavailable) {
				return err
			}
			failed++
			fmt.Fprintln(os.Stderr, err)
			return nil
		})
	}
	return failed, g.Wait()
}

type deadReplay struct{ letterChoice }

func (c *deadReplay) Run(ctx context.Context, log *slog.Logger) error {
	return run.WithStream(ctx, c.Operator, c.NATS, stream.Config{}, log, func(s *stream.Stream) error {
		letters, publisher := stream.NewDeadLetters(s).As(operatorName()), stream.NewPublisher(s)
		if c.DryRun {
			return c.dryRun(ctx, letters, "would be replayed")
		}
		var mu sync.Mutex
		var sent, known int
		failed, err := c.each(ctx, letters, "replaying", func(ctx context.Context, d stream.DeadLetter) error {
			receipt, err := letters.Replay(ctx, publisher, d)
			if errors.Is(err, stream.ErrHistoryGone) {
				err = fmt.Errorf("%w: look for its record in ClickHouse (sluice dead show %d), then drop the letter if it is there", err, d.Number)
			}
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if receipt.Replayed {
				known++
			} else {
				sent++
			}
			return nil
		})
		fmt.Printf("%d replayed", sent)
		if known > 0 {
			fmt.Printf(", %d had been replayed before", known)
		}
		fmt.Println("; one that is still bad comes back as a dead letter")
		return errors.Join(err, failures(failed, "be replayed"))
	})
}

type deadDrop struct {
	letterChoice
	Yes bool `help:"Drop them: they cannot be had back." env:"-"`
}

func (c *deadDrop) Run(ctx context.Context, log *slog.Logger) error {
	return run.WithStream(ctx, c.Operator, c.NATS, stream.Config{}, log, func(s *stream.Stream) error {
		letters := stream.NewDeadLetters(s).As(operatorName())
		if c.DryRun || !c.Yes {
			if err := c.dryRun(ctx, letters, "would be dropped"); err != nil || c.DryRun {
				return err
			}
			return errors.New("nothing was dropped: add --yes to drop them for ever")
		}
		var mu sync.Mutex
		dropped := 0
		failed, err := c.each(ctx, letters, "dropping", func(ctx context.Context, d stream.DeadLetter) error {
			if err := letters.Drop(ctx, d); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			dropped++
			return nil
		})
		fmt.Printf("%d dropped\n", dropped)
		return errors.Join(err, failures(failed, "be dropped"))
	})
}

func (c *letterChoice) dryRun(ctx context.Context, letters *stream.DeadLetters, what string) error {
	n, err := tabulateLetters(os.Stdout, c.chosen(ctx, letters))
	if err == nil {
		fmt.Printf("%d %s\n", n, what)
	}
	return err
}

// operatorName is who runs the command, as the notes about dead letters say it.
func operatorName() string {
	if who, err := user.Current(); err == nil {
		return "sluice dead, as " + who.Username
	}
	return "sluice dead"
}

func failures(n int, done string) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d could not %s: see above", n, done)
}
