package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"sluice/cmd/internal/export"
	"sluice/cmd/internal/run"
)

type exportCmd struct {
	Format     string `required:"" enum:"csv,ndjson,parquet,xes,ocel" help:"csv, ndjson, parquet, xes, or ocel."`
	Out        string `required:"" placeholder:"FILE" help:"File to write, - for standard output. With .gz at its end it is compressed."`
	Process    string `help:"BPMN process id; all processes when empty."`
	From       moment `help:"Instances that were started from then on: 90m, 24h, or a time such as 2026-01-31T12:00:00Z; from the beginning when empty."`
	To         moment `help:"Instances that were started before then; all that are there when empty."`
	Tenant     string `help:"Tenant; all tenants when empty."`
	Source     string `help:"Engine, as its token says; all engines when empty."`
	ClickHouse string `name:"clickhouse-http" default:"127.0.0.1:8123" help:"Address of ClickHouse's HTTP: host:8123 or https://user@host:8443/database; the database is flow unless given."`
	PassFile   string `name:"clickhouse-password-file" type:"existingfile" help:"File of the password of the user in --clickhouse-http, one line."`
	run.Operator
}

func (c *exportCmd) Run(ctx context.Context, _ *slog.Logger) error {
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
	clickhouse := run.ClickHouse{PasswordFile: c.PassFile}
	clickhouse.Warehouse.URL = c.ClickHouse
	if !strings.Contains(c.ClickHouse, "://") {
		clickhouse.Warehouse.URL = "http://" + c.ClickHouse
	}
	login, err := c.Operator.Warehouse(clickhouse)
	if err != nil {
		return err
	}
	bar := newBar(-1, "exporting, bytes")
	err = export.Run(ctx, export.Config{
		ClickHouse: login.URL, Format: c.Format, File: c.Out, Stdout: os.Stdout,
		Selection: export.Selection{Process: c.Process, Tenant: c.Tenant, Source: c.Source, From: from, To: to},
		Progress:  func(n int64) { _ = bar.Add64(n) }, // a terminal that is gone is no reason to fail
	})
	return errors.Join(err, bar.Finish())
}
