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
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"sluice/cmd/internal/run"
	"sluice/pkg/stream"
)

// dead is what an operator does about records that could not be stored.
type dead struct {
	List   deadList   `cmd:"" default:"withargs" help:"List dead letters, oldest first."`
	Show   deadShow   `cmd:"" help:"Show dead letters with their reason and their bytes."`
	Replay deadReplay `cmd:"" help:"Send dead letters through their lanes again, each exactly once."`
	Drop   deadDrop   `cmd:"" help:"Give dead letters up, for ever."`
}

// letterFilter picks dead letters by what they are.
type letterFilter struct {
	Lane    *int   `help:"Only those of this lane."`
	Code    string `help:"Only those with this code, such as refused."`
	Subject string `help:"Only what this token subject has posted."`
	Since   moment `help:"Only those set aside since then: 90m, 24h, or a time such as 2026-01-31T12:00:00Z."`
}

func (f letterFilter) empty() bool { return f == letterFilter{} }

// letters gives those that are there now. What is set aside meanwhile is left
// for the next time: a letter that is replayed and is still bad comes back.
func (f letterFilter) letters(ctx context.Context, l *stream.DeadLetters, limit int) iter.Seq2[stream.DeadLetter, error] {
	return func(yield func(stream.DeadLetter, error) bool) {
		filter := stream.DeadFilter{Lane: f.Lane, Code: f.Code}
		var err error
		if filter.Since, err = f.Since.by(ctx, l.Now); err == nil {
			filter.Upto, err = l.Last(ctx)
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
	Limit int  `default:"100" help:"Most letters to list; 0 for all."`
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
		all, err := letters.Count(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("%d of %d dead letters\n", n, all)
		return nil
	})
}

// letterLine is a dead letter as JSON, without its bytes.
type letterLine struct {
	Number   uint64    `json:"number"`
	At       time.Time `json:"at"` // when it was set aside
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

// idIn is the id of the record, if it has one that can be read.
func idIn(d stream.DeadLetter) string {
	var record struct {
		ID json.RawMessage `json:"id"`
	}
	if d.Index < 0 || json.Unmarshal(d.Message.Body, &record) != nil {
		return ""
	}
	var id string
	if json.Unmarshal(record.ID, &id) != nil {
		return string(record.ID) // a number, most likely
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

// tabulateLetters prints a table and returns the number of its lines.
func tabulateLetters(out io.Writer, list iter.Seq2[stream.DeadLetter, error]) (n int, err error) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "number\tset aside\tlane\tmessage\trecord\tid\tsubject\tcode\treason")
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

// short is text that was sent to us, made fit for a table.
func short(text string) string {
	const most = 40
	quoted := strconv.QuoteToGraphic(text)
	quoted = quoted[1 : len(quoted)-1]
	if r := []rune(quoted); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return quoted
}

type deadShow struct {
	Numbers []uint64 `arg:"" help:"Numbers of the letters, as listed."`
	Raw     bool     `help:"Print the bytes alone, as they are."`
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
		err = fmt.Errorf("there is no dead letter %d", number)
	}
	return d, err
}

func showLetter(w io.Writer, d stream.DeadLetter) error {
	m := d.Message
	what := fmt.Sprintf("record %d of message %d", d.Index, m.Seq)
	if d.Index < 0 {
		what = fmt.Sprintf("all of message %d", m.Seq)
	}
	_, err := fmt.Fprintf(w, "dead letter %d\n  set aside  %s\n  reason     %s (%s)\n  what       %s of lane %d\n  received   %s from %s\n  topic      %s\n\n%s\n",
		d.Number, d.At.UTC().Format(time.RFC3339), d.Reason, d.Code, what, m.Lane,
		m.Received.UTC().Format(time.RFC3339Nano), short(m.Subject), m.Topic, readable(run.PlainBody(d)))
	return err
}

// readable is JSON with line breaks, other text as it is, and anything else,
// which a terminal might take for commands, as a hex dump.
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
