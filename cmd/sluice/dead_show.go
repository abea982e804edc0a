package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sluice/cmd/internal/run"
	"sluice/pkg/stream"
)

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
