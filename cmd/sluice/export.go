package main

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"sluice/cmd/internal/export"
)

type exportCmd struct {
	Format  string `required:"" enum:"csv,ndjson,parquet,xes,ocel" help:"csv, ndjson, parquet, xes, or ocel."`
	Out     string `required:"" placeholder:"FILE" help:"File to write, - for standard output. With .gz at its end it is compressed."`
	Process string `help:"BPMN process id; all processes when empty."`
	From    moment `help:"Instances that were started from then on: 90m, 7d, or a time such as 2026-01-31T12:00:00Z; from the beginning when empty."`
	To      moment `help:"Instances that were started before then; all that are there when empty."`
	Tenant  string `help:"Tenant; all tenants when empty."`
	Source  string `help:"Engine, as its token says; all engines when empty."`
	reading
}

func (c *exportCmd) Run(ctx context.Context, _ *slog.Logger) error {
	from, to, err := between(ctx, c.From, c.To)
	if err != nil {
		return err
	}
	address, err := c.as(c.Operator.Warehouse)
	if err != nil {
		return err
	}
	bar := newBar(-1, "exporting, bytes")
	err = export.Run(ctx, export.Config{
		ClickHouse: address, Format: c.Format, File: c.Out, Stdout: os.Stdout,
		Selection: export.Selection{Process: c.Process, Tenant: c.Tenant, Source: c.Source, From: from, To: to},
		Progress:  func(n int64) { _ = bar.Add64(n) }, // a terminal that is gone is no reason to fail
	})
	return errors.Join(err, bar.Finish())
}
