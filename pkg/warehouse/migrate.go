package warehouse

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/flow"
	"sluice/pkg/warehouse/schema"
)

// The table schema of a database has its format, its schema version, and for each table a hash of the
// file that created it:
//
//	empty database       run every file, in order
//	same version         nothing; fail if a file differs
//	earlier version      run the migrations after it
//	later version        nothing: migrations keep what the previous binary needs
//
// and the variable with the business key of instances, if one was named.
const (
	formatRow   = "format"
	versionRow  = "version"
	businessRow = "business_key"
)

// loadSchema is the schema of this version.
func loadSchema() (*schema.Schema, error) {
	checks, err := lintSelect()
	if err != nil {
		return nil, err
	}
	return schema.Load(schema.Files(), checks)
}

// Migrate creates or completes the schema. It may run concurrently in several processes, and again
// after a crash. It refuses a database of an earlier format, and leaves one that a newer binary
// migrated.
func (db *DB) Migrate(ctx context.Context) error {
	s, err := loadSchema()
	if err != nil {
		return err
	}
	return db.migrate(ctx, s)
}

func (db *DB) migrate(ctx context.Context, s *schema.Schema) error {
	d, err := db.server(ctx)
	if err != nil {
		return err
	}
	if !d.Version.AtLeast(schema.Oldest.Major, schema.Oldest.Minor) {
		return fmt.Errorf("ClickHouse %s is too old: %s or later is needed", d.Version, schema.Oldest)
	}
	is, err := db.applied(ctx)
	if err != nil {
		return err
	}
	if is.exists() {
		if is.version >= len(s.Migrations) {
			if err := is.compare(db.name, s); err != nil {
				return err
			}
			return db.nameBusinessKey(ctx, d, s, is)
		}
	} else if err := db.begin(ctx, d); err != nil {
		return err
	}
	if is.complete {
		for n, m := range s.Migrations[is.version:] {
			if err := db.apply(ctx, d, m); err != nil {
				return err
			}
			if v := is.version + n + 1; v < len(s.Migrations) {
				if err := db.record(ctx, versionRow, strconv.Itoa(v)); err != nil {
					return err
				}
			}
			db.log.Info("schema migrated", "database", db.name, "migration", m.Name)
		}
	}
	for _, f := range s.Objects {
		// A crash after this runs the file again, which changes nothing.
		if err := db.apply(ctx, d, f); err != nil {
			return err
		}
		if err := db.record(ctx, f.Name, f.Hash); err != nil {
			return err
		}
	}
	if err := db.record(ctx, versionRow, strconv.Itoa(len(s.Migrations))); err != nil {
		return err
	}
	return db.nameBusinessKey(ctx, d, s, is)
}

// nameBusinessKey makes process_instances take business keys from the variable of Config. Stored
// records keep their keys; a rebuild applies the variable to them.
func (db *DB) nameBusinessKey(ctx context.Context, d schema.Server, s *schema.Schema, is applied) error {
	if d.BusinessKey == "" || d.BusinessKey == is.objects[businessRow] {
		return nil
	}
	if err := db.apply(ctx, d, s.Feed("process_instances")); err != nil {
		return err
	}
	// A crash before this applies it again, which changes nothing.
	return db.record(ctx, businessRow, d.BusinessKey)
}

// begin creates the database and its table schema, before any other.
func (db *DB) begin(ctx context.Context, d schema.Server) error {
	for _, statement := range []string{
		"CREATE DATABASE IF NOT EXISTS " + db.name + d.OnCluster(),
		"CREATE TABLE IF NOT EXISTS " + db.name + ".schema" + d.OnCluster() + `
(
    object String COMMENT 'file of the schema, format, or version',
    value String COMMENT 'hash of the file, or the number',
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') COMMENT 'UTC'
)
ENGINE = ` + d.EngineEverywhere("ReplacingMergeTree", "schema") + `
ORDER BY object
SETTINGS ` + d.Durable() + `
COMMENT 'What the database was made from: its format, the version of its schema, and a hash of the file of each table.'`,
	} {
		if err := db.everywhere(ctx, statement); err != nil {
			return fmt.Errorf("make database %s: %w", db.name, err)
		}
	}
	return db.record(ctx, formatRow, strconv.Itoa(flow.Format))
}

func (db *DB) record(ctx context.Context, object, value string) error {
	if err := db.storeEverywhere(ctx, fmt.Sprintf("INSERT INTO %s.schema (object, value) VALUES (?, ?)", db.name), object, value); err != nil {
		return fmt.Errorf("record %s of the schema: %w", object, err)
	}
	return nil
}

// apply runs the statements of a file, and retries failures that may come from another process at the
// same statement.
func (db *DB) apply(ctx context.Context, d schema.Server, f schema.File) error {
	statements, err := f.Statements(d)
	if err != nil {
		return err
	}
	for _, s := range statements {
		err := db.everywhere(ctx, s)
		for pause := 100 * time.Millisecond; err != nil && pause <= time.Second && ctx.Err() == nil; pause *= 3 {
			time.Sleep(pause)
			err = db.everywhere(ctx, s)
		}
		if err != nil {
			first, _, _ := strings.Cut(s, "\n")
			return fmt.Errorf("schema %s: %s: %w", f.Name, first, err)
		}
	}
	return nil
}

// applied is the content of the table schema.
type applied struct {
	format   string            // empty: none
	complete bool              // the schema was once complete
	version  int               // of the schema
	objects  map[string]string // hashes
}

func (a applied) exists() bool { return a.format != "" && a.complete }

// compare fails if a file differs from the one that created a table.
func (a applied) compare(database string, s *schema.Schema) error {
	if a.version > len(s.Migrations) {
		return nil
	}
	for _, f := range s.Objects {
		if a.objects[f.Name] != f.Hash {
			return fmt.Errorf("schema of database %s: %s.sql has changed since the database was made (hash %s, now %s), and no migration leads from the one to the other: use the version of Sluice that made it, or start with an empty database",
				database, f.Name, a.objects[f.Name], f.Hash)
		}
	}
	return nil
}

// applied reads the table schema. It refuses a database of another format.
func (db *DB) applied(ctx context.Context) (a applied, err error) {
	a.objects = map[string]string{}
	var tables []string
	if err := db.row(ctx, "look for the schema", "SELECT groupArray(name) FROM system.tables WHERE database = ? AND name IN ('schema', 'records', 'migrations')", []any{db.name}, &tables); err != nil {
		return a, err
	}
	if len(tables) == 0 {
		return a, nil
	}
	if !slices.Contains(tables, "schema") { // hidden in an analyst's lists
		var there uint8
		if err := db.row(ctx, "look for the schema", fmt.Sprintf("EXISTS TABLE %s.schema", db.name), nil, &there); err != nil {
			return a, err
		}
		if there == 0 {
			return a, db.refuseUnnumbered(ctx, tables)
		}
	}
	err = db.each(ctx, "read the schema", fmt.Sprintf("SELECT object, value FROM %s.schema FINAL", db.name), nil, func(rows driver.Rows) error {
		var object, value string
		err := rows.Scan(&object, &value)
		switch object {
		case formatRow:
			a.format = value
		case versionRow:
			a.complete = true
			if a.version, err = strconv.Atoi(value); err != nil {
				err = fmt.Errorf("database %s: the version of its schema is %q", db.name, value)
			}
		default:
			a.objects[object] = value
		}
		return err
	})
	if want := strconv.Itoa(flow.Format); err == nil && a.format != "" && a.format != want {
		err = fmt.Errorf("database %s has format %s, but this version of Sluice reads only format %s: use the version that created it, or another database", db.name, a.format, want)
	}
	return a, err
}

// refuseUnnumbered refuses a database from before formats had numbers.
func (db *DB) refuseUnnumbered(ctx context.Context, tables []string) error {
	last := "unknown"
	if slices.Contains(tables, "migrations") {
		if err := db.row(ctx, "read the last migration", fmt.Sprintf("SELECT argMax(name, version) FROM %s.migrations", db.name), nil, &last); err != nil {
			return err
		}
	}
	return fmt.Errorf("database %s is of a version of Sluice before format 1 (its last migration: %s), but this version reads only format %d: use the version that created it, or another database", db.name, last, flow.Format)
}

// Compatible fails if the database has another format. An empty one is compatible.
func (db *DB) Compatible(ctx context.Context) error {
	_, err := db.applied(ctx)
	return err
}

// checkSchema fails unless the database has the schema of this version, or a later one.
func (db *DB) checkSchema(ctx context.Context) error {
	begun, err := db.isRestoring(ctx)
	if err != nil {
		return err
	}
	if begun {
		return fmt.Errorf("database %s is being restored: finish it with sluice restore, or drop the database", db.name)
	}
	s, err := loadSchema()
	if err != nil {
		return err
	}
	is, err := db.applied(ctx)
	if err != nil {
		return err
	}
	if !is.exists() || is.version < len(s.Migrations) {
		return fmt.Errorf("the schema of database %s is missing or incomplete: run sluice migrate", db.name)
	}
	return is.compare(db.name, s)
}

// Schema is the version of the tables of a backup.
type Schema struct {
	Format  int `json:"format"`
	Version int `json:"version"` // of the schema

	BusinessKey string `json:"business_key,omitempty"` // variable with the business key of instances
}

// Schema reads the version of the tables of the database.
func (db *DB) Schema(ctx context.Context) (Schema, error) {
	is, err := db.applied(ctx)
	if err == nil && !is.exists() {
		err = fmt.Errorf("the schema of database %s is missing or incomplete: run sluice migrate", db.name)
	}
	return Schema{flow.Format, is.version, is.objects[businessRow]}, err
}
