package warehouse

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/zeebo/xxh3"

	"sluice/pkg/warehouse/dialect"
)

// The schema. Every statement may run again and on a table that is in use, and
// leaves what the binary before it needs: several ingesters start at once, and
// old and new ones run side by side during an upgrade.
//
//go:embed migrations/*.sql
var sources embed.FS

// migration is one file of the schema: <version>_<name>.sql.
type migration struct {
	version  uint32
	name     string
	source   string
	checksum string
}

// migrations returns all of them in order. Version 0 makes the table in which
// the others are recorded.
func migrations() ([]migration, error) { return migrationsIn(sources, "migrations") }

func migrationsIn(fsys fs.FS, folder string) ([]migration, error) {
	files, err := fs.ReadDir(fsys, folder)
	if err != nil {
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	var all []migration
	for _, f := range files { // sorted by name
		source, err := fs.ReadFile(fsys, folder+"/"+f.Name())
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", f.Name(), err)
		}
		number, _, _ := strings.Cut(f.Name(), "_")
		v, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("migration %s has no number: %w", f.Name(), err)
		}
		sum := xxh3.Hash128(source).Bytes()
		all = append(all, migration{uint32(v), f.Name(), string(source), fmt.Sprintf("%x", sum)})
	}
	return all, nil
}

// Migrate makes or completes the schema. It may run at the same time in
// several processes, and again after a crash at any point. A database that a
// newer binary has migrated is left as it is.
func (db *DB) Migrate(ctx context.Context) error {
	all, err := migrations()
	if err != nil {
		return err
	}
	return db.migrate(ctx, all)
}

func (db *DB) migrate(ctx context.Context, all []migration) error {
	d, err := db.dialect(ctx)
	if err != nil {
		return err
	}
	if !d.Version.AtLeast(dialect.Oldest.Major, dialect.Oldest.Minor) {
		return fmt.Errorf("ClickHouse %s is too old: %s or later is needed", d.Version, dialect.Oldest)
	}
	if err := db.apply(ctx, d, all[0]); err != nil {
		return err
	}
	applied, err := db.applied(ctx)
	if err != nil {
		return err
	}
	for _, m := range all[1:] {
		checksum, done := applied[m.version]
		if done && checksum != m.checksum {
			return fmt.Errorf("migration %s is not the one %s was made with: a migration must not change once it has run", m.name, db.name)
		}
		if done {
			continue
		}
		if err := db.apply(ctx, d, m); err != nil {
			return err
		}
		// A crash here runs the migration again, which changes nothing.
		insert := fmt.Sprintf("INSERT INTO %s.migrations (version, name, checksum) VALUES (?, ?, ?)", db.name)
		if err := db.storeEverywhere(ctx, insert, m.version, m.name, m.checksum); err != nil {
			return fmt.Errorf("record migration %s: %w", m.name, err)
		}
		db.log.Info("schema migrated", "database", db.name, "migration", m.name)
	}
	return nil
}

// apply runs the statements of one migration. A failure may be another
// process at the same statement: that one is repeated.
func (db *DB) apply(ctx context.Context, d dialect.Dialect, m migration) error {
	statements, err := d.Statements(m.name, m.source)
	if err != nil {
		return err
	}
	for _, s := range statements {
		err := db.run(ctx, s)
		for pause := 100 * time.Millisecond; err != nil && pause <= time.Second && ctx.Err() == nil; pause *= 3 {
			time.Sleep(pause)
			err = db.run(ctx, s)
		}
		if err != nil {
			first, _, _ := strings.Cut(s, "\n")
			return fmt.Errorf("migration %s: %s: %w", m.name, first, err)
		}
	}
	return nil
}

// run runs a statement of a migration. A binary before this one may be inserting: an
// insert tells the materialized views that there are when it begins, and those that
// began before a view was made or dropped know nothing of that. So a migration that
// copies the rows of a table into another one, or takes a table away, waits for them first.
// A crash while waiting changes nothing: the next run waits again.
func (db *DB) run(ctx context.Context, statement string) error {
	copies := strings.HasPrefix(statement, "INSERT ")
	if copies || strings.HasPrefix(statement, "CREATE OR REPLACE TABLE ") {
		if err := db.insertsEnd(ctx); err != nil {
			return err
		}
	}
	if !copies {
		return db.everywhere(ctx, statement)
	}
	ctx, err := db.storing(ctx, nil)
	if err != nil {
		return err
	}
	return db.onShards(ctx, scanTime, statement)
}

// insertsEnd waits until every insert into the database has ended that runs now; one
// that begins meanwhile is not waited for.
func (db *DB) insertsEnd(ctx context.Context) error {
	conns := []driver.Conn{db.queries}
	if db.cfg.Cluster != "" {
		conns = nil
		all, err := db.layout(ctx)
		if err != nil {
			return err
		}
		for _, r := range all {
			conn, err := db.servers.at(r.address)
			if err != nil {
				return err
			}
			conns = append(conns, conn)
		}
	}
	began := time.Now()
	for _, conn := range conns {
		for {
			var running uint64
			asked, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
			err := conn.QueryRow(asked, "SELECT count() FROM system.processes WHERE query_kind = 'Insert' AND elapsed >= ? AND (current_database = ? OR position(query, ?) > 0)",
				time.Since(began).Seconds(), db.name, db.name).Scan(&running)
			cancel()
			if err != nil {
				return storeError("look for inserts that run", err)
			}
			if running == 0 {
				break
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// applied maps each version that was applied to the checksum of its source.
func (db *DB) applied(ctx context.Context) (map[uint32]string, error) {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	rows, err := db.queries.Query(ctx, fmt.Sprintf("SELECT version, checksum FROM %s.migrations FINAL", db.name))
	if err != nil {
		return nil, fmt.Errorf("read the applied migrations: %w", err)
	}
	defer rows.Close()
	all := map[uint32]string{}
	for rows.Next() {
		var v uint32
		var checksum string
		if err := rows.Scan(&v, &checksum); err != nil {
			return nil, fmt.Errorf("read the applied migrations: %w", err)
		}
		all[v] = checksum
	}
	return all, rows.Err()
}

func (db *DB) exec(ctx context.Context, statement string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	return db.queries.Exec(ctx, statement, args...)
}

// Check returns nil when no insert, however often it is repeated, can count
// twice: the server is recent enough, takes the settings, has the whole
// schema, and the tables that inserts end up in all remember them and are
// written durably: records, changes, and whatever a materialized view feeds
// from them, views that others have added included. The error names every
// table and setting that is wrong.
func (db *DB) Check(ctx context.Context) error {
	d, err := db.dialect(ctx)
	if err != nil {
		return err
	}
	if !d.Version.AtLeast(dialect.Oldest.Major, dialect.Oldest.Minor) {
		return fmt.Errorf("ClickHouse %s is too old: %s or later is needed", d.Version, dialect.Oldest)
	}
	if err := db.checkMigrated(ctx); err != nil {
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

func (db *DB) checkMigrated(ctx context.Context) error {
	begun, err := db.isRestoring(ctx)
	if err != nil {
		return err
	}
	if begun {
		return fmt.Errorf("database %s is being restored: finish it with sluice restore, or drop the database", db.name)
	}
	all, err := migrations()
	if err != nil {
		return err
	}
	applied, err := db.applied(ctx)
	if err != nil {
		return err
	}
	for _, m := range all[1:] {
		if _, done := applied[m.version]; !done {
			return fmt.Errorf("the schema of %s lacks migration %s: run sluice migrate", db.name, m.name)
		}
	}
	return nil
}

// checkSettings names the settings of inserts that the server does not know, or
// that are not the user's to set.
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
			found = append(found, fmt.Errorf("the user may not set %s, which every insert has to", name))
		}
	}
	return found, rows.Err()
}

// table is a line of system.tables.
type table struct {
	name    string   // with its database
	engine  string   // such as ReplicatedReplacingMergeTree
	create  string   // the statement that would make it
	feeds   []string // materialized views that read what is inserted into it
	targets string   // of a materialized view: the table it writes to
}

// target finds where a materialized view writes to: the table after TO, or the
// one it keeps for itself.
var target = regexp.MustCompile(`^CREATE MATERIALIZED VIEW \S+(?: UUID '\S+')? TO (?:INNER UUID '[^']+'|(\S+))`)

// tables reads the database and whatever hangs on its tables, in any database.
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

// checkTables follows the materialized views from where inserts begin.
func (db *DB) checkTables(d dialect.Dialect, tables map[string]*table) []error {
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

// check tells whether the table recognises an insert that is repeated, and
// keeps one over a power cut.
func (t *table) check() error {
	replicated := strings.HasPrefix(t.engine, "Replicated")
	name := "non_replicated_deduplication_window"
	switch {
	case t.engine == "Null":
		return nil // keeps nothing, hands on to its views
	case replicated:
		name = "replicated_deduplication_window"
	case !strings.HasSuffix(t.engine, "MergeTree"):
		return fmt.Errorf("table %s has engine %s, which cannot tell a repeated insert: drop the materialized view that feeds it", t.name, t.engine)
	}
	if got := t.setting(name); got < dialect.Window {
		return fmt.Errorf("table %s would count a repeated insert twice: %s is %d, and must be at least %d: ALTER TABLE %s MODIFY SETTING %s = %d",
			t.name, name, got, dialect.Window, t.name, name, dialect.Window)
	}
	if replicated {
		return nil // a quorum holds it
	}
	for _, name := range []string{"fsync_after_insert", "fsync_part_directory"} {
		if t.setting(name) != 1 {
			return fmt.Errorf("table %s may lose inserts in a power cut: ALTER TABLE %s MODIFY SETTING %s = 1", t.name, t.name, name)
		}
	}
	return nil
}

// setting reads a number from the statement that made the table. Without one
// it is 0, the default of all that are asked for here but
// replicated_deduplication_window, which has had several.
func (t *table) setting(name string) int {
	m := regexp.MustCompile(`\b` + name + `\s*=\s*'?(\d+)`).FindStringSubmatch(t.create)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1])
	return n
}
