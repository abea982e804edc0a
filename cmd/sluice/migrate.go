package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/audit/expiry"
	"sluice/cmd/internal/run"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

type migrate struct {
	Schema migrateSchema `cmd:"" default:"withargs" help:"Bring the ClickHouse schema up to date (the default)."`
	TTL    migrateTTL    `cmd:"" name:"ttl" help:"Set or show the retention of tables."`
}

type migrateSchema struct {
	run.Operator
	run.ClickHouse
}

func (c *migrateSchema) Run(ctx context.Context, log *slog.Logger) error {
	cfg, err := c.Operator.Warehouse(c.ClickHouse)
	if err != nil {
		return err
	}
	db, err := warehouse.Open(cfg, log, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.Migrate(ctx); err != nil {
		return err
	}
	if err := db.Check(ctx); err != nil {
		return err
	}
	fmt.Println("the schema is up to date")
	return nil
}

type migrateTTL struct {
	KeepRecords   days `placeholder:"400d" help:"Retention of flow.records, in days after the UTC day on which a row was stored, or forever; unchanged when empty."`
	KeepCounts    days `placeholder:"400d" help:"Retention of flow.counts_1m, likewise."`
	KeepInstances days `placeholder:"forever" help:"Retention of ended process instances and those they called, in the aggregate tables, in days after the UTC day of their last event, or forever. The ingester deletes them."`
	KeepChanges   days `placeholder:"forever" help:"Retention of flow.changes, likewise."`
	installation
}

// Run sets the given retentions, and prints all.
func (c *migrateTTL) Run(ctx context.Context, log *slog.Logger) error {
	if c.KeepRecords.given || c.KeepCounts.given { // the expiry line moves first
		return c.with(ctx, 0, log, func(db *warehouse.DB, s *stream.Stream) error {
			return c.retain(ctx, db, func(r warehouse.Retention) error { return expiry.Retain(ctx, s, db, r) })
		})
	}
	db, err := openTables(ctx, c.Operator, c.ClickHouse, log)
	if err != nil {
		return err
	}
	defer db.Close()
	return c.retain(ctx, db, func(r warehouse.Retention) error { return db.Retain(ctx, r) })
}

func (c *migrateTTL) retain(ctx context.Context, db *warehouse.DB, set func(warehouse.Retention) error) error {
	for _, t := range []struct {
		table string
		days  days
	}{{"records", c.KeepRecords}, {"counts_1m", c.KeepCounts}, {"changes", c.KeepChanges}, {"instances", c.KeepInstances}} {
		if t.days.given {
			if err := set(warehouse.Retention{Table: t.table, Days: t.days.n}); err != nil {
				return err
			}
		}
	}
	all, err := db.Retentions(ctx)
	if err != nil {
		return err
	}
	for _, r := range all {
		subject, event := fmt.Sprintf("%s.%s keeps rows", db.Database(), r.Table), "storage"
		if r.Table == "instances" {
			subject, event = "aggregate tables keep ended instances", "their last event"
		}
		fmt.Println(subject, days{n: r.Days, given: true}.behind(event))
	}
	return nil
}

// days is a retention: 30d, or forever. The zero value means not given.
type days struct {
	n     int // 0: forever
	given bool
}

func (d *days) UnmarshalText(text []byte) error {
	number, counted := strings.CutSuffix(string(text), "d")
	n, err := strconv.Atoi(number)
	switch {
	case string(text) == "forever":
		*d = days{given: true}
	case err != nil || !counted || n < 1:
		return fmt.Errorf("%q is not a retention: use a number of days such as 30d, or forever", text)
	default:
		*d = days{n, true}
	}
	return nil
}

func (d days) behind(event string) string {
	if d.n == 0 {
		return "forever"
	}
	return fmt.Sprintf("%d days after the day of %s", d.n, event)
}
