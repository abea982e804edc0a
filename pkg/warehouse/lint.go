package warehouse

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
)

//go:embed lint.sql
var lintFile string

// Checks are the checks of lint.sql. Each returns a row per engine with findings: source, findings,
// and example.
func Checks() ([]Question, error) { return parseQuestions(lintFile) }

// lintSelect is the SELECT of the view v_lint: all checks with their names.
func lintSelect() (string, error) {
	checks, err := Checks()
	quoted := strings.NewReplacer("'", "''")
	var all []string
	for _, c := range checks {
		all = append(all, fmt.Sprintf("SELECT source, '%s' AS check_name, '%s' AS finding, findings, example,\n    '%s' AS what_to_do\nFROM\n(\n%s\n)",
			c.Name, quoted.Replace(c.Asks), quoted.Replace(c.Do), c.SQL))
	}
	return strings.Join(all, "\nUNION ALL\n"), err
}

// Finding is the result of a check for one engine.
type Finding struct {
	Check   string `json:"check"`   // name of the check, such as rounded_keys
	Asks    string `json:"finding"` // in words
	Source  string `json:"source"`
	Count   uint64 `json:"count"`
	Example string `json:"example"`
	Do      string `json:"do"`
	SQL     string `json:"sql"`
}

// Lint runs every check of lint.sql.
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
