package main

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"sluice/cmd/internal/export"
)

type exportCmd struct {
	Format   string   `required:"" enum:"csv,ndjson,parquet,xes,ocel" help:"csv, ndjson, parquet, xes, or ocel."`
	Out      string   `required:"" placeholder:"FILE" help:"File to write, - for standard output; compressed if its name ends in .gz."`
	Process  string   `help:"BPMN process id; all processes when empty."`
	From     moment   `help:"Instances started since this age or time, such as 90m, 7d, or 2026-01-31T12:00:00Z; from the beginning when empty."`
	To       moment   `help:"Instances started before this age or time; no limit when empty."`
	Tenant   string   `help:"Tenant; all tenants when empty."`
	Source   string   `help:"Source; all sources when empty."`
	Variable []string `sep:"none" placeholder:"NAME" help:"Variable that cases get as the attribute variable.NAME; repeat for more."`
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
		ClickHouse: address, Format: c.Format, File: c.Out, Stdout: os.Stdout, Variables: c.Variable,
		Selection: export.Selection{Process: c.Process, Tenant: c.Tenant, Source: c.Source, From: from, To: to},
		Progress:  func(n int64) { _ = bar.Add64(n) }, // a closed terminal is no reason to fail
	})
	return errors.Join(err, bar.Finish())
}
