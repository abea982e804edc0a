package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/schollz/progressbar/v3"

	"sluice/cmd/internal/placement"
	"sluice/cmd/internal/run"
	"sluice/pkg/stream"
)

type lanesReplicas struct {
	run.Operator
	run.NATS
	Copies  int           `arg:"" optional:"" help:"How many servers are to hold every stream: 1, 3 or 5."`
	Timeout time.Duration `default:"1h" help:"Wait so long. NATS goes on copying after that, and the same command waits for it again."`
}

func (c *lanesReplicas) Run(ctx context.Context, log *slog.Logger) error {
	switch c.Copies {
	case 0:
		return withPlacement(ctx, c.Operator, c.NATS, time.Minute, log, listCopies)
	case 1, 3, 5:
		return withPlacement(ctx, c.Operator, c.NATS, c.Timeout, log, func(ctx context.Context, p *placement.Placement) error {
			return p.Replicas(ctx, c.Copies)
		})
	}
	return fmt.Errorf("%d copies: a majority of them has to agree, so there are 1, 3 or 5", c.Copies)
}

type lanesMove struct {
	run.Operator
	run.NATS
	Off      string        `placeholder:"SERVER" help:"Take what is there off this server, before it is stopped for good: another one gets it."`
	To       []string      `placeholder:"TAG,..." help:"Keep it on servers that have all of these tags (server_tags in nats.conf)."`
	Anywhere bool          `help:"Keep it on any servers, whatever tags were asked for before."`
	Lead     string        `placeholder:"SERVER" help:"Make this server the leader of what it holds, so that another one can be restarted without a pause."`
	From     string        `placeholder:"URL" help:"Copy everything there from another NATS, such as a server that runs alone. Records are refused with 429 meanwhile; then start apis and ingesters with the new --nats."`
	FromUser string        `default:"operator" help:"Its user who may do everything, with --from-password-file."`
	FromFile string        `name:"from-password-file" type:"existingfile" help:"File of the password of that user; without it that in --data, on this machine."`
	Copies   int           `default:"3" help:"With --from: how many servers are to hold every stream: 1, 3 or 5."`
	Lanes    []int         `help:"Numbers of lanes, comma-separated; everything, dead letters and buckets too, when empty."`
	Timeout  time.Duration `default:"1h" help:"Wait so long. NATS goes on after that, and the same command waits for it again."`
}

func (c *lanesMove) Run(ctx context.Context, log *slog.Logger) error {
	given := 0
	for _, is := range []bool{c.Off != "", len(c.To) > 0, c.Anywhere, c.Lead != "", c.From != ""} {
		if is {
			given++
		}
	}
	if given != 1 {
		return errors.New("say where: one of --off, --to, --anywhere, --lead and --from")
	}
	return withPlacement(ctx, c.Operator, c.NATS, c.Timeout, log, func(ctx context.Context, p *placement.Placement) error {
		switch {
		case c.Off != "":
			return p.Off(ctx, c.Off, c.Lanes)
		case c.Lead != "":
			return p.Lead(ctx, c.Lead, c.Lanes)
		case c.From != "":
			return c.carry(ctx, p, log)
		}
		return p.To(ctx, c.To, c.Lanes)
	})
}

// carry copies everything from another NATS, and looks that it can be used here.
func (c *lanesMove) carry(ctx context.Context, p *placement.Placement, log *slog.Logger) error {
	from := c.NATS
	from.URL, from.User, from.PasswordFile = c.From, "", ""
	if !strings.HasPrefix(c.From, "tls://") { // certificates are for the other one
		from.CA, from.Cert, from.Key = "", "", ""
	}
	if c.FromFile != "" {
		from.User, from.PasswordFile = c.FromUser, c.FromFile
	}
	err := run.WithNATS(ctx, c.Operator, from, log, func(nc *nats.Conn, reg prometheus.Registerer) error {
		if err := connected(ctx, nc); err != nil {
			return fmt.Errorf("--from: %w", err)
		}
		opening, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		installation, err := stream.Open(opening, nc, stream.Config{}, log, reg)
		if err != nil {
			return fmt.Errorf("--from: %w", err)
		}
		return p.Carry(ctx, nc, installation, c.Copies)
	})
	if err != nil {
		return err
	}
	return run.WithStream(ctx, c.Operator, c.NATS, stream.Config{}, log, func(s *stream.Stream) error {
		fmt.Printf("everything is there, with lanes %s: start apis, ingesters and consoles with the new --nats; the old lanes take nothing any more\n", numbers(s.LaneNumbers()))
		return nil
	})
}

// connected waits until NATS has let one in.
func connected(ctx context.Context, nc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return stream.Connected(ctx, nc)
}

// withPlacement works on the copies of streams for so long.
func withPlacement(ctx context.Context, o run.Operator, n run.NATS, limit time.Duration, log *slog.Logger, do func(context.Context, *placement.Placement) error) error {
	return run.WithNATS(ctx, o, n, log, func(nc *nats.Conn, _ prometheus.Registerer) error {
		if err := connected(ctx, nc); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		show := &showCopies{bar: newBar(-1, "asking"), said: time.Now()}
		p, err := placement.New(nc, show)
		if err != nil {
			return err
		}
		return do(ctx, p)
	})
}

// showCopies prints a line for each stream that is where it is to be, and what one
// waits for: on a terminal all the time, elsewhere now and then.
type showCopies struct {
	bar  *progressbar.ProgressBar
	said time.Time
}

func (s *showCopies) Waiting(stream, reason string) {
	if !run.IsTerminal(os.Stderr) {
		if time.Since(s.said) > 10*time.Second {
			fmt.Printf("%s: %s\n", stream, reason)
			s.said = time.Now()
		}
		return
	}
	s.bar.Describe(stream + ": " + reason)
	_ = s.bar.Add(1) // it only turns
}

func (s *showCopies) Done(c placement.Copies) {
	_ = s.bar.Clear() // a bar that cannot be cleared stands above the line
	fmt.Printf("%s: on %s, led by %s\n", c.Stream, strings.Join(c.Servers, ", "), c.Leader)
	s.said = time.Now()
}

// listCopies prints where every stream is.
func listCopies(ctx context.Context, p *placement.Placement) error {
	all, err := p.List(ctx)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "stream\tmessages\tbytes\tcopies\tled by\tservers\t")
	for _, c := range all {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\t%s\n", c.Stream, c.Messages, c.Bytes, max(len(c.Servers), 1), c.Leader, strings.Join(c.Servers, ","), c.Problem)
	}
	return w.Flush()
}
