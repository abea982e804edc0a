package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"sluice/cmd/internal/audit/verify"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

type verifyCmd struct {
	Since        moment        `help:"Only messages since this age or time, such as 90m, 24h, or 2026-01-31T12:00:00Z; all retained messages when empty."`
	Limit        int           `default:"20" help:"Maximum number of records to name."`
	Deep         bool          `help:"Compare every column of every record, not only its id, lane, and sequence."`
	Repeats      bool          `help:"Also name deduplicated records, by lane and sequence; up to --limit."`
	Wait         time.Duration `default:"15s" help:"How long to wait for blocks that are being stored."`
	JSON         bool          `name:"json" help:"Print the report as JSON, with every minute."`
	RepeatWindow time.Duration `default:"10m" help:"Deduplication window of requests, as configured for the ingesters."`
	installation
}

func (c *verifyCmd) Run(ctx context.Context, log *slog.Logger) error {
	return c.with(ctx, c.RepeatWindow, log, func(db *warehouse.DB, s *stream.Stream) error {
		since, err := c.Since.by(ctx, s.Now)
		if err != nil {
			return err
		}
		bar := newBar(1, "verifying messages")
		report, err := verify.Run(ctx, s, db, verify.Config{
			Since: since, Limit: c.Limit, Deep: c.Deep, Repeats: c.Repeats, Wait: c.Wait, Progress: shownBy(bar),
		})
		if err = errors.Join(err, bar.Finish()); err != nil {
			return err
		}
		if c.JSON {
			err = json.NewEncoder(os.Stdout).Encode(report)
		} else {
			err = printReport(os.Stdout, report, db.Database())
		}
		if err == nil && !report.OK {
			err = errors.New("verification failed: the report names records and remedies")
		}
		return err
	})
}

// printReport prints the table, the findings, and one sentence.
func printReport(out io.Writer, r *verify.Report, database string) error {
	total := r.Total()
	columns := []struct {
		name   string
		count  func(verify.Tally) uint64
		always bool
	}{
		{"accepted", func(t verify.Tally) uint64 { return t.Accepted }, true},
		{"stored", func(t verify.Tally) uint64 { return t.Stored }, true},
		{"deduplicated", func(t verify.Tally) uint64 { return t.Repeated }, true},
		{"dead-lettered", func(t verify.Tally) uint64 { return t.Dead }, true},
		{"backlog", func(t verify.Tally) uint64 { return t.Waiting }, true},
		{"replayed", func(t verify.Tally) uint64 { return t.Replayed }, false},
		{"dropped", func(t verify.Tally) uint64 { return t.Dropped }, false},
		{"forgotten", func(t verify.Tally) uint64 { return t.Forgotten }, false},
		{"missing", func(t verify.Tally) uint64 { return t.Missing }, true},
		{"doubled", func(t verify.Tally) uint64 { return t.Doubled }, true},
		{"changed", func(t verify.Tally) uint64 { return t.Changed }, false},
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(first, second string, cell func(i int) string) {
		fmt.Fprintf(w, "%s\t%s\t", first, second)
		for i, c := range columns {
			if c.always || c.count(total) > 0 {
				fmt.Fprintf(w, "%s\t", cell(i))
			}
		}
		fmt.Fprintln(w)
	}
	line("lane", "messages", func(i int) string { return columns[i].name })
	for _, l := range r.Lanes {
		if p := l.Purged; p.Read > 0 {
			t := verify.Tally{Accepted: p.Read, Stored: p.Stored, Repeated: p.Deduplicated, Dead: p.DeadLettered}
			line(strconv.Itoa(l.Lane), fmt.Sprintf("before %d", l.First), func(i int) string { return strconv.FormatUint(columns[i].count(t), 10) })
		}
		line(strconv.Itoa(l.Lane), fmt.Sprintf("%d-%d", l.First, l.Last), func(i int) string { return strconv.FormatUint(columns[i].count(l.Tally), 10) })
	}
	if len(r.Lanes) > 1 {
		line("all", "", func(i int) string { return strconv.FormatUint(columns[i].count(total), 10) })
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	printFindings(out, r.Findings)
	if more := r.Found - uint64(len(r.Findings)); more > 0 {
		fmt.Fprintf(out, "and %d more: --limit %d names them\n", more, r.Found)
	}
	printFindings(out, r.Repeats)
	for _, p := range r.Problems {
		fmt.Fprintf(out, "problem: %s\n", p)
	}
	if len(r.Recount) > 0 {
		fmt.Fprintf(out, "due: sluice recount %s: the counters of these days are in doubt\n", strings.Join(r.Recount, " "))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(out, "note: %s\n", n)
	}
	_, err := fmt.Fprintln(out, sentence(r, database))
	return err
}

func printFindings(out io.Writer, findings []verify.Finding) {
	if len(findings) == 0 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "finding\tlane\tsequence:index\tid\treceived\t")
	for _, f := range findings {
		received := ""
		if !f.Received.IsZero() {
			received = f.Received.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%d\t%d:%d\t%s\t%s\t%s\n", f.Kind, f.Lane, f.Sequence, f.Index, short(f.ID), received, f.Detail)
	}
	w.Flush() // an error shows when the sentence is printed
	fmt.Fprintln(out)
}

// sentence is the verdict and the remedy.
func sentence(r *verify.Report, database string) string {
	t := r.Total()
	if r.OK {
		purged := r.Purged()
		text := fmt.Sprintf("All %d accepted records are accounted for", t.Accepted+purged.Read)
		if purged.Read > 0 {
			text += fmt.Sprintf(", %d of them by the totals of purged messages", purged.Read)
		}
		return text + "."
	}
	text := fmt.Sprintf("Verification failed: %d missing, %d duplicated.", t.Missing, t.Doubled+r.Duplicated)
	if t.Missing > 0 {
		text += fmt.Sprintf(" %d accepted records are missing: sluice rebuild recreates the tables from the lanes.", t.Missing)
	}
	if many := t.Doubled + r.Duplicated; many > 0 {
		text += fmt.Sprintf(" %d rows are surplus: OPTIMIZE TABLE %s.records FINAL merges copies, sluice rebuild recreates the tables.", many, database)
	}
	if t.Changed > 0 {
		text += fmt.Sprintf(" %d rows differ from the accepted records: sluice rebuild recreates them for comparison.", t.Changed)
	}
	return text
}
