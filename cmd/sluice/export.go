package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"sluice/cmd/internal/export"
	"sluice/cmd/internal/run"
	"sluice/pkg/warehouse"
)

type exportCmd struct {
	Format  string `required:"" enum:"xes,ocel,parquet,csv,ndjson" help:"xes, ocel, parquet, csv or ndjson."`
	Out     string `required:"" placeholder:"FILE" help:"File to write, - for standard output. With .gz at its end it is compressed; OCEL becomes a database with .sqlite or .db, else JSON."`
	Process string `help:"BPMN process id; all processes when empty."`
	From    moment `help:"Instances that were started from then on: 90m, 24h, or a time such as 2026-01-31T12:00:00Z; from the beginning when empty."`
	To      moment `help:"Instances that were started before then; all that are there when empty."`
	Tenant  string `help:"Tenant; all tenants when empty."`
	Source  string `help:"Engine, as its token says; all engines when empty."`
	run.Operator
	run.ClickHouse
}

func (c *exportCmd) Run(ctx context.Context, log *slog.Logger) error {
	now := func(context.Context) (time.Time, error) { return time.Now(), nil }
	from, err := c.From.by(ctx, now)
	if err != nil {
		return err
	}
	to, err := c.To.by(ctx, now)
	if err != nil {
		return err
	}
	if !from.IsZero() && !to.IsZero() && !from.Before(to) {
		return fmt.Errorf("--from %s is not before --to %s", from.UTC().Format(time.RFC3339Nano), to.UTC().Format(time.RFC3339Nano))
	}
	db, err := openTables(c.Operator, c.ClickHouse, log)
	if err != nil {
		return err
	}
	defer db.Close()
	bar := newBar(1, "exporting instances")
	result, err := export.Run(ctx, db, export.Config{
		Selection: warehouse.Selection{Process: c.Process, Tenant: c.Tenant, Source: c.Source, From: from, To: to},
		Format:    c.Format, File: c.Out, Stdout: os.Stdout,
		Progress: func(done, total uint64) {
			bar.ChangeMax64(int64(total))
			_ = bar.Set64(int64(done)) // a terminal that is gone is no reason to fail
		},
	})
	_ = bar.Finish()
	fmt.Fprintf(os.Stderr, "%d instances and %d events are in %s\n", result.Instances, result.Events, c.Out)
	if err != nil && !result.Next.IsZero() {
		err = errors.Join(err, fmt.Errorf("go on from there with --from %s", result.Next.UTC().Format(time.RFC3339Nano)))
	}
	return err
}
