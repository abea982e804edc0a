package main

import (
	"context"
	"fmt"
	"strings"
)

// foldViews are the views that fill the folds, each with the statement that
// makes rows of its fold from rows of records, which by then are known to
// be those that were sent.
const foldViews = `
SELECT name, as_select, extract(create_table_query, ' TO ([^ (]+)') FROM system.tables
WHERE database = currentDatabase() AND engine = 'MaterializedView' AND as_select LIKE '%records%' ORDER BY name`

// folds compares every fold with the same fold made at once from all records,
// and names those that differ. What is no part of a record, as when it was
// received, has no truth here.
func (t *tables) folds(ctx context.Context) (compared int, differ []string, err error) {
	rows, err := t.db.Query(ctx, foldViews)
	if err != nil {
		return 0, nil, fmt.Errorf("read the views: %w", err)
	}
	type view struct{ name, query, target string }
	var views []view
	for rows.Next() {
		var v view
		if err := rows.Scan(&v.name, &v.query, &v.target); err != nil {
			return 0, nil, err
		}
		views = append(views, v)
	}
	if err := rows.Err(); err != nil {
		return 0, nil, err
	}
	for _, v := range views {
		if strings.HasSuffix(v.target, ".counts_1m") {
			continue // compared sum by sum
		}
		columns, err := t.foldColumns(ctx, v.target, v.name)
		if err != nil {
			return 0, nil, err
		}
		var kept, made, both uint64
		if err := t.db.QueryRow(ctx, fmt.Sprintf(`
			SELECT countIf(side = 1), countIf(side = 2), countIf(side = 3) FROM (
				SELECT hash, groupBitOr(of) AS side FROM (
					SELECT cityHash64(toString(tuple(%[1]s))) AS hash, 1 AS of FROM %[2]s FINAL
					UNION ALL
					SELECT cityHash64(toString(tuple(%[1]s))) AS hash, 2 AS of FROM (%[3]s)
				) GROUP BY hash
			)`, columns, v.target, v.query)).Scan(&kept, &made, &both); err != nil {
			return 0, nil, fmt.Errorf("compare %s: %w", v.target, err)
		}
		compared++
		if kept > 0 || made > 0 {
			differ = append(differ, fmt.Sprintf("%s: %d rows as they should be, %d others, %d missing", v.target, both, kept, made))
		}
	}
	return compared, differ, nil
}

// foldColumns are the columns of a fold so that equal contents give equal
// text: sets are sorted, and states finished.
func (t *tables) foldColumns(ctx context.Context, table, view string) (string, error) {
	database, name, _ := strings.Cut(table, ".")
	rows, err := t.db.Query(ctx, `SELECT name, type FROM system.columns WHERE database = ? AND table = ? AND default_kind = ''
		AND name IN (SELECT name FROM system.columns WHERE database = ? AND table = ?) ORDER BY position`, database, name, database, view)
	if err != nil {
		return "", err
	}
	var all []string
	for rows.Next() {
		var column, kind string
		if err := rows.Scan(&column, &kind); err != nil {
			return "", err
		}
		quoted := "`" + column + "`"
		switch {
		case strings.HasPrefix(kind, "AggregateFunction"):
			quoted = "finalizeAggregation(" + quoted + ")"
		case strings.Contains(kind, "groupUniqArray"):
			quoted = "arraySort(" + quoted + ")"
		}
		all = append(all, quoted)
	}
	return strings.Join(all, ", "), rows.Err()
}
