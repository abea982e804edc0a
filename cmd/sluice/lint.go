package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"

	"sluice/cmd/internal/run"
)

type lintCmd struct {
	SQL  bool `name:"sql" help:"Print the statement behind each finding too."`
	JSON bool `name:"json" help:"Print the findings as JSON."`
	run.Operator
	run.ClickHouse
}

// Run prints what is found. Findings are no failure: much of it is history that
// cannot be changed.
func (c *lintCmd) Run(ctx context.Context, log *slog.Logger) error {
	db, err := openTables(ctx, c.Operator, c.ClickHouse, log)
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
