package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/run"
	"sluice/pkg/warehouse"
)

type lintCmd struct {
	SQL  bool `name:"sql" help:"Print the statement behind each finding too."`
	JSON bool `name:"json" help:"Print the findings as JSON."`
	run.Operator
	run.ClickHouse
}

// Run prints what is found. Findings are no failure: much of it is history that
// nobody can change.
func (c *lintCmd) Run(ctx context.Context, log *slog.Logger) error {
	cfg, err := c.Operator.Warehouse(c.ClickHouse)
	if err != nil {
		return err
	}
	cfg.QueryTimeout = queryTime
	db, err := warehouse.Open(cfg, log, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	defer db.Close()
	found, err := db.Lint(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(os.Stdout).Encode(found)
	}
	if len(found) == 0 {
		fmt.Println("nothing looks wrong")
	}
	for _, f := range found {
		fmt.Printf("%s: %s (%s, %d), such as %s\n  what to do: %s\n", f.Source, f.Asks, f.Check, f.Count, f.Example, f.Do)
		if c.SQL {
			fmt.Printf("\n%s\n\n", f.SQL)
		}
	}
	return nil
}
