package warehouse

import (
	"context"
	"fmt"
	"strings"
)

// Finding is something that a check has found of one engine.
type Finding struct {
	Check   string `json:"check"`   // name of the check, such as rounded_keys
	Asks    string `json:"finding"` // in words
	Source  string `json:"source"`
	Count   uint64 `json:"count"`
	Example string `json:"example"`
	Do      string `json:"do"`
	SQL     string `json:"sql"`
}

// Lint makes every check of lint.sql.
func (db *DB) Lint(ctx context.Context) ([]Finding, error) {
	checks, err := Checks()
	if err != nil {
		return nil, err
	}
	var all []Finding
	for _, c := range checks {
		found, err := db.check(ctx, c)
		if err != nil {
			return all, fmt.Errorf("check %s: %w", c.Name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

func (db *DB) check(ctx context.Context, c Question) ([]Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	sql := strings.ReplaceAll(c.SQL, "flow.", db.name+".")
	rows, err := db.queries.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []Finding
	for rows.Next() {
		f := Finding{Check: c.Name, Asks: c.Asks, Do: c.Do, SQL: sql}
		if err := rows.Scan(&f.Source, &f.Count, &f.Example); err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, rows.Err()
}
