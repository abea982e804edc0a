package warehouse

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/zeebo/xxh3"
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
	if !d.Version.atLeast(oldest.Major, oldest.Minor) {
		return fmt.Errorf("ClickHouse %s is too old: %s or later is needed", d.Version, oldest)
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
func (db *DB) apply(ctx context.Context, d dialect, m migration) error {
	statements, err := d.statements(m.name, m.source)
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
// began before a view was made or dropped know nothing of that. So whoever copies the
// rows of a table into another one, or takes a table away, waits for them first.
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
