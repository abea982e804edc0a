package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"text/tabwriter"
	"time"

	"sluice/cmd/internal/audit/rebuild"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

type rebuildCmd struct {
	Into         string        `required:"" help:"Database to rebuild into, such as flow_rebuild; created when missing, resumed when it exists."`
	Limit        int           `default:"20" help:"Maximum number of differing records to name."`
	JSON         bool          `name:"json" help:"Print the report as JSON."`
	RepeatWindow time.Duration `default:"10m" help:"Deduplication window of requests, as configured for the ingesters."`
	installation
}

func (c *rebuildCmd) Run(ctx context.Context, log *slog.Logger) error {
	return c.with(ctx, c.RepeatWindow, log, func(db *warehouse.DB, s *stream.Stream) error {
		into, err := db.Shadow(c.Into)
		if err != nil {
			return fmt.Errorf("--into: %w", err)
		}
		bar := newBar(1, "rebuilding messages")
		report, err := rebuild.Run(ctx, s, into, rebuild.Config{Limit: c.Limit, Progress: shownBy(bar)})
		if err = errors.Join(err, bar.Finish()); err != nil {
			return err
		}
		if c.JSON {
			err = json.NewEncoder(os.Stdout).Encode(report)
		} else {
			err = printRebuild(os.Stdout, report, db.Database(), c.Into)
		}
		if err == nil && !report.OK {
			err = fmt.Errorf("%s differs from the rebuilt tables in %s", db.Database(), c.Into)
		}
		return err
	})
}

func printRebuild(out io.Writer, r *rebuild.Report, live, into string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "lane\tmessages\trows of %s\trows of %s\tdiffering minutes\t\n", live, into)
	for _, l := range r.Lanes {
		fmt.Fprintf(w, "%d\t%d-%d\t%d\t%d\t%d\t\n", l.Lane, l.First, l.Last, l.Live, l.Rebuilt, l.Differ)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(r.Differences) > 0 {
		fmt.Fprintln(out)
	}
	for _, d := range r.Differences {
		if d.ID == "" && d.Seq == 0 {
			fmt.Fprintf(out, "lane %d, %s: %s\n", d.Lane, d.Minute.Format(time.RFC3339), d.Kind)
			continue
		}
		fmt.Fprintf(out, "lane %d, %s: record %d:%d %s of %s is %s\n", d.Lane, d.Minute.Format(time.RFC3339), d.Seq, d.Index, short(d.ID), live, d.Kind)
	}
	if r.OK {
		fmt.Fprintf(out, "\n%s and %s hold the same records.\n", live, into)
	} else {
		fmt.Fprintf(out, "\n%s and %s differ.\n", live, into)
	}
	fmt.Fprintf(out, "To use the rebuilt tables, stop the ingesters, run this command again to catch up, and then:\n\n")
	for _, s := range r.Swap {
		fmt.Fprintf(out, "  %s;\n", s)
	}
	_, err := fmt.Fprintf(out, "\nTo discard them: DROP DATABASE %s\n", into)
	return err
}
