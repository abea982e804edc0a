package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/run"
	"sluice/pkg/warehouse"
)

type migrate struct {
	Schema migrateSchema `cmd:"" default:"withargs" help:"Bring the ClickHouse schema up to date (the default)."`
	TTL    migrateTTL    `cmd:"" name:"ttl" help:"Say how long tables keep their rows, or show it."`
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
	KeepRecords days `placeholder:"400d" help:"How long flow.records keeps a row after it came in, in whole days, or forever; as it is when empty."`
	KeepCounts  days `placeholder:"400d" help:"Likewise flow.counts_1m."`
	KeepChanges days `placeholder:"forever" help:"Likewise flow.changes."`
	run.Operator
	run.ClickHouse
}

// Run sets what is given, and prints what is so then.
func (c *migrateTTL) Run(ctx context.Context, log *slog.Logger) error {
	db, err := openTables(ctx, c.Operator, c.ClickHouse, log)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, t := range []struct {
		table string
		days  days
	}{{"records", c.KeepRecords}, {"counts_1m", c.KeepCounts}, {"changes", c.KeepChanges}} {
		if t.days.given {
			if err := db.Retain(ctx, warehouse.Retention{Table: t.table, Days: t.days.n}); err != nil {
				return err
			}
		}
	}
	all, err := db.Retentions(ctx)
	if err != nil {
		return err
	}
	for _, r := range all {
		fmt.Printf("%s.%s keeps rows %s\n", db.Database(), r.Table, days{n: r.Days, given: true})
	}
	return nil
}

// days is how long to keep something: 30d, or forever. The zero value says
// nothing.
type days struct {
	n     int // 0 for ever
	given bool
}

func (d *days) UnmarshalText(text []byte) error {
	number, counted := strings.CutSuffix(string(text), "d")
	n, err := strconv.Atoi(number)
	switch {
	case string(text) == "forever":
		*d = days{given: true}
	case err != nil || !counted || n < 1:
		return fmt.Errorf("%q is no time to keep something: say 30d or forever", text)
	default:
		*d = days{n, true}
	}
	return nil
}

func (d days) String() string {
	if d.n == 0 {
		return "forever"
	}
	return fmt.Sprintf("%d days after they came in", d.n)
}
