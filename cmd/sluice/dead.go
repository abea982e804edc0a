package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/run"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

type dead struct {
	List   deadList   `cmd:"" default:"withargs" help:"List dead letters, oldest first."`
	Show   deadShow   `cmd:"" help:"Show dead letters with reason, origin, and content."`
	Replay deadReplay `cmd:"" help:"Publish dead letters to their lanes, each exactly once."`
	Drop   deadDrop   `cmd:"" help:"Delete dead letters, permanently."`
}

type letterFilter struct {
	Lane    *int   `help:"Only letters of this lane."`
	Code    string `help:"Only letters with this code, such as refused."`
	Subject string `help:"Only letters that this token subject posted."`
	Since   moment `help:"Only letters dead-lettered since this age or time, such as 90m, 24h, or 2026-01-31T12:00:00Z."`
}

func (f letterFilter) empty() bool { return f == letterFilter{} }

// letters excludes letters added after it starts: replaying an invalid record appends a
// new letter.
func (f letterFilter) letters(ctx context.Context, l *stream.DeadLetters, limit int) iter.Seq2[stream.DeadLetter, error] {
	return func(yield func(stream.DeadLetter, error) bool) {
		room, err := l.Room(ctx)
		filter := stream.DeadFilter{Lane: f.Lane, Code: f.Code, Upto: room.Last}
		if err == nil {
			filter.Since, err = f.Since.by(ctx, l.Now)
		}
		if err != nil {
			yield(stream.DeadLetter{}, err)
			return
		}
		n := 0
		for d, err := range l.List(ctx, filter) {
			if err == nil && f.Subject != "" && d.Message.Subject != f.Subject {
				continue
			}
			if n++; limit > 0 && n > limit || !yield(d, err) {
				return
			}
		}
	}
}

type deadList struct {
	letterFilter
	Limit int  `default:"100" help:"Maximum number of letters to list; 0 for all."`
	JSON  bool `name:"json" help:"Print one JSON object per line."`
	run.Operator
	run.NATS
}

func (c *deadList) Run(ctx context.Context, log *slog.Logger) error {
	return run.WithStream(ctx, c.Operator, c.NATS, stream.Config{}, log, func(s *stream.Stream) error {
		letters := stream.NewDeadLetters(s)
		list := c.letters(ctx, letters, c.Limit)
		if c.JSON {
			return printLetters(os.Stdout, list)
		}
		n, err := tabulateLetters(os.Stdout, list)
		if err != nil {
			return err
		}
		room, err := letters.Room(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("%d of %d dead letters\n", n, room.Letters)
		return nil
	})
}

// letterLine is a dead letter as JSON, without its content.
type letterLine struct {
	Number   uint64    `json:"number"`
	At       time.Time `json:"at"` // when it was dead-lettered
	Code     string    `json:"code"`
	Reason   string    `json:"reason"`
	Lane     int       `json:"lane"`
	Sequence uint64    `json:"sequence"`
	Index    int       `json:"index"` // -1 for the whole message
	ID       string    `json:"id,omitempty"`
	Subject  string    `json:"subject,omitempty"`
	Received time.Time `json:"received"`
	Bytes    int       `json:"bytes"`
}

func lineOf(d stream.DeadLetter) letterLine {
	return letterLine{
		Number: d.Number, At: d.At, Code: d.Code, Reason: d.Reason, Lane: d.Message.Lane, Sequence: d.Message.Seq,
		Index: d.Index, ID: idIn(d), Subject: d.Message.Subject, Received: d.Message.Received, Bytes: len(d.Message.Body),
	}
}

// idIn is the id of the record; empty if it cannot be read.
func idIn(d stream.DeadLetter) string {
	var record struct {
		ID json.RawMessage `json:"id"`
	}
	if d.Index < 0 || json.Unmarshal(d.Message.Body, &record) != nil {
		return ""
	}
	var id string
	if json.Unmarshal(record.ID, &id) != nil {
		return string(record.ID) // such as a number
	}
	return id
}

func printLetters(w io.Writer, list iter.Seq2[stream.DeadLetter, error]) error {
	encoder := json.NewEncoder(w)
	for d, err := range list {
		if err == nil {
			err = encoder.Encode(lineOf(d))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tabulateLetters returns the number of letters in the table.
func tabulateLetters(out io.Writer, list iter.Seq2[stream.DeadLetter, error]) (n int, err error) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "number\tdead-lettered\tlane\tmessage\trecord\tid\tsubject\tcode\treason")
	for d, err := range list {
		if err != nil {
			return n, errors.Join(err, w.Flush())
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", d.Number, d.At.UTC().Format(time.DateTime), d.Message.Lane,
			d.Message.Seq, recordOf(d), short(idIn(d)), short(d.Message.Subject), d.Code, d.Reason)
		n++
	}
	return n, w.Flush()
}

func recordOf(d stream.DeadLetter) string {
	if d.Index < 0 {
		return "all"
	}
	return strconv.Itoa(d.Index)
}

// short escapes received text and truncates it for a table.
func short(text string) string {
	const maxRunes = 40
	quoted := strconv.QuoteToGraphic(text)
	quoted = quoted[1 : len(quoted)-1]
	if r := []rune(quoted); len(r) > maxRunes {
		return string(r[:maxRunes-1]) + "…"
	}
	return quoted
}

type deadShow struct {
	Numbers []uint64 `arg:"" help:"Numbers of the letters, as listed."`
	Raw     bool     `help:"Print only the content, unchanged."`
	run.Operator
	run.NATS
}

func (c *deadShow) Run(ctx context.Context, log *slog.Logger) error {
	return run.WithStream(ctx, c.Operator, c.NATS, stream.Config{}, log, func(s *stream.Stream) error {
		letters := stream.NewDeadLetters(s)
		for i, number := range c.Numbers {
			d, err := letter(ctx, letters, number)
			if err != nil {
				return err
			}
			if c.Raw {
				_, err = os.Stdout.Write(run.PlainBody(d))
			} else {
				if i > 0 {
					fmt.Println()
				}
				err = showLetter(os.Stdout, d)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func letter(ctx context.Context, letters *stream.DeadLetters, number uint64) (stream.DeadLetter, error) {
	d, ok, err := letters.Get(ctx, number)
	if err == nil && !ok {
		err = fmt.Errorf("no dead letter %d: sluice dead list shows all", number)
	}
	return d, err
}

func showLetter(w io.Writer, d stream.DeadLetter) error {
	m := d.Message
	what := fmt.Sprintf("record %d of message %d", d.Index, m.Seq)
	if d.Index < 0 {
		what = fmt.Sprintf("all of message %d", m.Seq)
	}
	_, err := fmt.Fprintf(w, "dead letter %d\n  dead-lettered  %s\n  reason         %s (%s)\n  origin         %s of lane %d\n  received       %s from %s\n  topic          %s\n\n%s\n",
		d.Number, d.At.UTC().Format(time.RFC3339), d.Reason, d.Code, what, m.Lane,
		m.Received.UTC().Format(time.RFC3339Nano), short(m.Subject), m.Topic, readable(run.PlainBody(d)))
	return err
}

// readable indents JSON, returns other text unchanged, and dumps anything else in hex: a
// terminal might execute control characters.
func readable(body []byte) string {
	if !utf8.Valid(body) || strings.ContainsFunc(string(body), func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' && r != '\r' }) {
		return strings.TrimRight(hex.Dump(body), "\n")
	}
	var pretty bytes.Buffer
	if json.Indent(&pretty, body, "", "  ") == nil {
		return pretty.String()
	}
	return string(body)
}

// letterChoice selects the letters of replay and drop.
type letterChoice struct {
	Numbers []uint64 `arg:"" optional:"" help:"Numbers of the letters, as listed; when omitted, the letters that match the filters."`
	letterFilter
	All    bool `help:"Select all letters." env:"-"`
	Limit  int  `default:"0" help:"Maximum number of letters, oldest first; 0 for all."`
	DryRun bool `help:"Only list the selected letters."`
	run.Operator
	run.NATS
}

func (c *letterChoice) Validate() error {
	named, filtered := len(c.Numbers) > 0, !c.empty()
	switch {
	case named && (filtered || c.All):
		return errors.New("give either numbers or filters, not both")
	case !named && !filtered && !c.All:
		return errors.New("no letters selected: give numbers, filters, or --all")
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

// lettersAtOnce is the concurrency of replay and drop: concurrent messages share the
// group commits of their lanes.
const lettersAtOnce = 16

// each calls do for every selected letter, several at a time. An error of one letter is
// printed and does not stop the others; when NATS is unreachable or full, each stops.
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
			if errors.Is(err, stream.ErrHistoryPurged) {
				err = fmt.Errorf("%w: find its record in ClickHouse (sluice dead show %d), and drop the letter if it is stored", err, d.Number)
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
		fmt.Println("; records that are still invalid become dead letters again")
		return errors.Join(err, failures(failed, "be replayed"))
	})
}

type deadDrop struct {
	letterChoice
	Yes bool `help:"Drop the letters. This cannot be undone." env:"-"`
}

func (c *deadDrop) Run(ctx context.Context, log *slog.Logger) error {
	return run.WithStream(ctx, c.Operator, c.NATS, stream.Config{}, log, func(s *stream.Stream) error {
		letters := stream.NewDeadLetters(s).As(operatorName())
		if c.DryRun || !c.Yes {
			if err := c.dryRun(ctx, letters, "would be dropped"); err != nil || c.DryRun {
				return err
			}
			return errors.New("nothing was dropped: add --yes to drop them permanently")
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

// operatorName is recorded with replayed and dropped letters.
func operatorName() string {
	if u, err := user.Current(); err == nil {
		return "sluice dead, as " + u.Username
	}
	return "sluice dead"
}

func failures(n int, done string) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d could not %s: the errors are above", n, done)
}
