package warehouse

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ClickHouse/clickhouse-go/v2"

	"sluice/pkg/record"
)

// Refold tells the folds again what the rows that the claim of the block names
// say, as far as they are in the table: when the token of an insert is
// forgotten, nobody knows which of the materialized views have heard of it. A
// fold that is made of minima, maxima and sets may hear a thing twice.
// flow.sources counts rows too, and hears only what it has not heard; counters
// are left alone. On a cluster each shard does so by itself, as its views do.
func (db *DB) Refold(ctx context.Context, b record.Block) error {
	from, to := claimed(b)
	if from == to {
		return nil
	}
	tables, err := db.tables(ctx)
	if err != nil {
		return err
	}
	d := db.plain()
	records := d.Table("records")
	source := fmt.Sprintf("(SELECT * FROM %s WHERE %s)", records, ofClaim(b, from, to))
	for _, name := range tables[records].feeds {
		view := tables[name]
		if view == nil || view.engine != "MaterializedView" || !isFold(tables[view.targets]) {
			continue
		}
		if err := db.refold(ctx, view, records, source, b.Lane, b.Columns.Incarnation[from]); err != nil {
			return storeError("tell "+view.targets+" again", err)
		}
	}
	return nil
}

// refold inserts what a view makes of source instead of its table.
func (db *DB) refold(ctx context.Context, view *table, records, source string, lane int, incarnation uint64) error {
	var query string
	var columns []string
	short := view.name[len(db.name)+1:]
	for question, dest := range map[string]any{
		"SELECT as_select FROM system.tables WHERE database = ? AND name = ?":          &query,
		"SELECT groupArray(name) FROM system.columns WHERE database = ? AND table = ?": &columns,
	} {
		if err := db.row(ctx, "read a view", question, []any{db.name, short}, dest); err != nil {
			return err
		}
	}
	read := regexp.MustCompile(`\bFROM ` + regexp.QuoteMeta(records) + `\b(?: AS \w+)?`)
	if !read.MatchString(query) {
		return fmt.Errorf("the materialized view %s does not read %s plainly", view.name, records)
	}
	query = read.ReplaceAllStringFunc(query, func(from string) string {
		_, alias, named := strings.Cut(from, " AS ")
		if !named {
			alias = "records"
		}
		return "FROM " + source + " AS " + alias
	})
	heard := ""
	if slices.Contains(columns, "last_seq") && slices.Contains(columns, "rows") {
		heard = fmt.Sprintf(" WHERE (source, partition_id, day, last_seq) NOT IN (SELECT n.source, n.partition_id, n.day, n.last_seq FROM (%s) AS n INNER JOIN %s AS s ON n.source = s.source AND n.partition_id = s.partition_id AND n.day = s.day WHERE s.lane = %d AND s.incarnation = %d AND s.last_seq >= n.last_seq)", query, db.plain().Table("sources"), lane, incarnation)
	}
	list := strings.Join(columns, ", ")
	ctx, err := db.storing(ctx, clickhouse.Settings{"asterisk_include_alias_columns": 1, "max_query_size": 256 << 20})
	if err != nil {
		return err
	}
	return db.onShards(ctx, db.cfg.QueryTimeout, fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM (%s)%s", view.targets, list, list, query, heard))
}

// aggregate finds the aggregate functions of a table.
var aggregate = regexp.MustCompile(`AggregateFunction\((\w+)`)

// idempotent are the aggregate functions that may hear a thing twice.
var idempotent = []string{
	"min", "max", "any", "anyLast", "any_respect_nulls", "argMin", "argMax", "groupUniqArray", "groupUniqArrayArray",
	"groupBitAnd", "groupBitOr", "minMap", "maxMap", "uniq", "uniqExact", "uniqCombined",
}

// isFold says whether rows of a table that are inserted twice change nothing,
// but for flow.sources, of which it is said above.
func isFold(t *table) bool {
	if t == nil || !strings.HasSuffix(t.engine, "AggregatingMergeTree") {
		return false
	}
	if strings.HasSuffix(t.name, ".sources") || strings.HasSuffix(t.name, ".sources_local") {
		return true
	}
	for _, m := range aggregate.FindAllStringSubmatch(t.create, -1) {
		if !slices.Contains(idempotent, m[1]) {
			return false
		}
	}
	return true
}
