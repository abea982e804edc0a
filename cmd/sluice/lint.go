package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	"sluice/cmd/internal/run"
	"sluice/pkg/auth"
	"sluice/pkg/warehouse"
)

type lintCmd struct {
	SQL    bool   `name:"sql" help:"Also print the statement of each finding."`
	JSON   bool   `name:"json" help:"Print the findings as JSON."`
	Tokens string `help:"Token file of the api: position gaps of sources that exclude records are not reported; empty: tokens.yaml of --data."`
	run.Operator
	run.ClickHouse
}

// viewsLag is longer than the time after which the views have the rows of an insert.
const viewsLag = 2 * time.Second

// Run also succeeds with findings: many are about past records, which cannot change.
func (c *lintCmd) Run(ctx context.Context, log *slog.Logger) error {
	db, err := openTables(ctx, c.Operator, c.ClickHouse, log)
	if err != nil {
		return err
	}
	defer db.Close()
	found, err := db.Lint(ctx)
	if len(found) > 0 { // perhaps of rows that the views do not have yet
		time.Sleep(viewsLag)
		first := found
		found, err = db.Lint(ctx)
		found = slices.DeleteFunc(found, func(f warehouse.Finding) bool {
			return !slices.ContainsFunc(first, func(g warehouse.Finding) bool { return f.Source == g.Source && f.Check == g.Check })
		})
	}
	if err != nil {
		return err
	}
	sparing, err := excluding(tokenFile{Data: c.Data, Tokens: c.Tokens})
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(f warehouse.Finding) bool { return f.Check == "position_gaps" && sparing[f.Source] })
	if c.JSON {
		return json.NewEncoder(os.Stdout).Encode(found)
	}
	if len(found) == 0 {
		fmt.Println("no findings")
	}
	for _, f := range found {
		fmt.Printf("%s: %s (%s, %d), such as %s\n  remedy: %s\n", f.Source, f.Asks, f.Check, f.Count, f.Example, f.Do)
		if c.SQL {
			fmt.Printf("\n%s\n\n", f.SQL)
		}
	}
	return nil
}

// excluding are the sources with a token that excludes records; none if the default token
// file is missing.
func excluding(file tokenFile) (map[string]bool, error) {
	tokens, err := auth.Read(file.path())
	if err != nil && !(file.Tokens == "" && errors.Is(err, fs.ErrNotExist)) {
		return nil, fmt.Errorf("--tokens: %w", err)
	}
	sources := map[string]bool{}
	for _, t := range tokens {
		if len(t.Exclude) > 0 {
			sources[sourceOf(t)] = true
		}
	}
	return sources, nil
}
