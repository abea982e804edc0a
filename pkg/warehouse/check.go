package warehouse

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sluice/pkg/warehouse/schema"
)

// Check returns nil if no insert can count twice when repeated: the server is recent enough,
// accepts the settings, has the whole schema, and all tables that receive inserts deduplicate and
// write durably: records, changes, and the targets of their materialized views, user-defined views
// included. The error lists every wrong table and setting.
func (db *DB) Check(ctx context.Context) error {
	d, err := db.server(ctx)
	if err != nil {
		return err
	}
	if !d.Version.AtLeast(schema.Oldest.Major, schema.Oldest.Minor) {
		return fmt.Errorf("ClickHouse %s is too old: %s or later is needed", d.Version, schema.Oldest)
	}
	if err := db.checkSchema(ctx); err != nil {
		return err
	}
	tables, err := db.tables(ctx)
	if err != nil {
		return err
	}
	found := db.checkTables(d, tables)
	settings, err := db.checkSettings(ctx)
	if err != nil {
		return err
	}
	return errors.Join(append(found, settings...)...)
}

// checkSettings lists settings of inserts that the server lacks or the user may not set.
func (db *DB) checkSettings(ctx context.Context) ([]error, error) {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	sent, err := db.insertSettings(ctx, "records", "", db.cfg.InsertTimeout)
	if err != nil {
		return nil, fmt.Errorf("read the settings: %w", err)
	}
	needed := make([]string, len(sent))
	for i, setting := range sent {
		needed[i] = setting.Key
	}
	rows, err := db.queries.Query(ctx, "SELECT name FROM system.settings WHERE readonly = 0 AND name IN (?)", needed)
	if err != nil {
		return nil, fmt.Errorf("read the settings: %w", err)
	}
	defer rows.Close()
	var free []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, fmt.Errorf("read the settings: %w", err)
		}
		free = append(free, name)
	}
	var found []error
	for _, name := range needed {
		if !slices.Contains(free, name) {
			found = append(found, fmt.Errorf("the user may not set %s, which every insert needs: allow it", name))
		}
	}
	return found, rows.Err()
}

// table is a line of system.tables.
type table struct {
	name    string   // with its database
	engine  string   // such as ReplicatedReplacingMergeTree
	create  string   // its CREATE statement
	feeds   []string // materialized views that read its inserts
	targets string   // of a materialized view: the table it writes to
}

// target matches the target of a materialized view: the table after TO, or its inner table.
var target = regexp.MustCompile(`^CREATE MATERIALIZED VIEW \S+(?: UUID '\S+')? TO (?:INNER UUID '[^']+'|(\S+))`)

// tables reads the tables of the database and their dependents in any database.
func (db *DB) tables(ctx context.Context) (map[string]*table, error) {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	rows, err := db.queries.Query(ctx, `SELECT database || '.' || name, engine, create_table_query,
		arrayMap((d, t) -> d || '.' || t, dependencies_database, dependencies_table), database || '..inner_id.' || toString(uuid)
		FROM system.tables WHERE database NOT IN ('system', 'INFORMATION_SCHEMA', 'information_schema')`)
	if err != nil {
		return nil, fmt.Errorf("read the tables: %w", err)
	}
	defer rows.Close()
	all := map[string]*table{}
	for rows.Next() {
		var t table
		var inner string
		if err := rows.Scan(&t.name, &t.engine, &t.create, &t.feeds, &inner); err != nil {
			return nil, fmt.Errorf("read the tables: %w", err)
		}
		if t.engine == "MaterializedView" {
			t.targets = inner
			if m := target.FindStringSubmatch(t.create); m != nil && m[1] != "" {
				t.targets = strings.ReplaceAll(m[1], "`", "")
			}
		}
		all[t.name] = &t
	}
	return all, rows.Err()
}

// checkTables checks the tables of inserts and of the views that they feed.
func (db *DB) checkTables(d schema.Server, tables map[string]*table) []error {
	var found []error
	seen := map[string]bool{}
	next := []string{d.Table("records"), db.name + ".changes"}
	for len(next) > 0 {
		name := next[0]
		next = next[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		t, ok := tables[name]
		if !ok {
			found = append(found, fmt.Errorf("table %s does not exist, or the user may not see it", name))
			continue
		}
		if err := t.check(); err != nil {
			found = append(found, err)
		}
		for _, view := range t.feeds {
			if v := tables[view]; v != nil && v.engine == "MaterializedView" {
				next = append(next, v.targets)
			}
		}
	}
	return found
}

// check fails unless the table deduplicates repeated inserts and writes them durably.
func (t *table) check() error {
	replicated := strings.HasPrefix(t.engine, "Replicated")
	name := "non_replicated_deduplication_window"
	switch {
	case t.engine == "Null":
		return nil // stores nothing, only feeds its views
	case replicated:
		name = "replicated_deduplication_window"
	case !strings.HasSuffix(t.engine, "MergeTree"):
		return fmt.Errorf("table %s has engine %s, which cannot deduplicate inserts: drop the materialized view that feeds it", t.name, t.engine)
	}
	if got := t.setting(name); got < schema.Window {
		return fmt.Errorf("table %s would count a repeated insert twice: %s is %d, and must be at least %d: ALTER TABLE %s MODIFY SETTING %s = %d",
			t.name, name, got, schema.Window, t.name, name, schema.Window)
	}
	if replicated {
		return nil // durable by quorum
	}
	for _, name := range []string{"fsync_after_insert", "fsync_part_directory"} {
		if t.setting(name) != 1 {
			return fmt.Errorf("table %s may lose inserts in a power failure: ALTER TABLE %s MODIFY SETTING %s = 1", t.name, t.name, name)
		}
	}
	return nil
}

// setting parses a number of the table's CREATE statement. The default 0 is right for all settings
// asked for, except replicated_deduplication_window, whose default has changed.
func (t *table) setting(name string) int {
	m := regexp.MustCompile(`\b` + name + `\s*=\s*'?(\d+)`).FindStringSubmatch(t.create)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n
}
