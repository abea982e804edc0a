package warehouse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/flow"
	"sluice/pkg/warehouse/native"
	"sluice/pkg/warehouse/schema"
)

// stagingPrefix is the name prefix of tables that a restore fills first.
const stagingPrefix = "restored_"

// restoring is the table that records a running restore.
const restoring = "restore"

// Restore fills an empty database from dumped files. Each table is filled beside its place, where no
// materialized view reads, compared with the dump, and moved into place by an idempotent statement:
//
//	RestoreInto → Load every file → Compare → Publish → … → Finish
//
// The database records the progress, so that an interrupted restore resumes. Until Finish no ingester
// starts.
type Restore struct {
	*DB
	id   string
	done map[string]bool
}

// RestoreBegun resumes a restore, or starts one. It fails if the database is not empty, except for an
// interrupted restore of the same id.
func (db *DB) RestoreBegun(ctx context.Context, id string) (*Restore, error) {
	if db.cfg.Cluster != "" {
		return nil, errors.New("this command does not restore tables of a ClickHouse cluster: see docs/backup.md")
	}
	r := &Restore{DB: db, id: id, done: map[string]bool{}}
	begun, err := db.isRestoring(ctx)
	if err == nil && begun {
		err = r.resume(ctx)
	} else if err == nil {
		err = db.checkEmpty(ctx)
	}
	return r, err
}

// RestoreInto starts or resumes a restore: id identifies the backup, whose rows have this schema. It fails
// if the database is not empty.
func (db *DB) RestoreInto(ctx context.Context, id string, of Schema) (*Restore, error) {
	r, err := db.RestoreBegun(ctx, id)
	if err != nil {
		return nil, err
	}
	s, err := loadSchema()
	if err != nil {
		return nil, err
	}
	if of.Format != flow.Format || of.Version > len(s.Migrations) {
		return nil, fmt.Errorf("the backup is of format %d and version %d of the schema, but this version of Sluice reads format %d up to version %d: use the version that created it", of.Format, of.Version, flow.Format, len(s.Migrations))
	}
	db.cfg.BusinessKey = of.BusinessKey
	if err := db.migrate(ctx, s); err != nil {
		return nil, err
	}
	d := schema.Server{Database: db.name}
	if err := db.exec(ctx, fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s.%s (id String, item String) ENGINE = MergeTree ORDER BY (id, item) SETTINGS %s", db.name, restoring, d.Durable())); err != nil {
		return nil, fmt.Errorf("begin the restore: %w", err)
	}
	return r, r.Note(ctx, "begun")
}

// isRestoring reports whether a restore is not finished.
func (db *DB) isRestoring(ctx context.Context) (bool, error) {
	var n uint64
	err := db.row(ctx, "look for a restore", "SELECT count() FROM system.tables WHERE database = ? AND name = ?", []any{db.name, restoring}, &n)
	return n > 0, err
}

// resume reads the progress.
func (r *Restore) resume(ctx context.Context) error {
	return r.each(ctx, "read the progress of the restore", fmt.Sprintf("SELECT id, item FROM %s.%s", r.name, restoring), nil, func(rows driver.Rows) error {
		var id, item string
		if err := rows.Scan(&id, &item); err != nil {
			return err
		}
		if id != r.id {
			return fmt.Errorf("database %s has an unfinished restore of another backup, %s: finish it, or drop the database", r.name, id)
		}
		r.done[item] = true
		return nil
	})
}

// checkEmpty fails if a table of the database has rows.
func (db *DB) checkEmpty(ctx context.Context) error {
	return db.each(ctx, "check that the database is empty", "SELECT if(database = ?, table, concat(database, '.', table)) AS name, sum(rows) FROM system.parts WHERE active AND (database = ? AND table != 'schema' OR database = ? AND ? = 'flow') GROUP BY name HAVING sum(rows) > 0 ORDER BY name LIMIT 1",
		[]any{db.name, db.name, modelsDatabase, db.name},
		func(rows driver.Rows) error {
			var table string
			var n uint64
			if err := rows.Scan(&table, &n); err != nil {
				return err
			}
			return fmt.Errorf("database %s is not empty: table %s has %d rows; choose another database, or drop this one", db.name, table, n)
		})
}

// Done reports whether an item was recorded as done.
func (r *Restore) Done(item string) bool { return r.done[item] }

// Note records an item as done.
func (r *Restore) Note(ctx context.Context, item string) error {
	if r.done[item] {
		return nil
	}
	ctx = clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{"async_insert": 0}))
	if err := r.exec(ctx, fmt.Sprintf("INSERT INTO %s.%s (id, item) VALUES (?, ?)", r.name, restoring), r.id, item); err != nil {
		return storeError("record the progress of the restore", err)
	}
	r.done[item] = true
	return nil
}

func (r *Restore) staging(table string) string { return r.name + "." + stagingPrefix + table }

// Prepare creates the table beside the one to fill. It does not merge parts or expire rows, so that Compare
// sees exactly the dumped rows.
func (r *Restore) Prepare(ctx context.Context, t DumpTable) error {
	if t.Model != "" {
		if err := r.makeModel(ctx, t); err != nil {
			return err
		}
	}
	var columns []string
	if err := r.row(ctx, "read the columns of "+t.Name, "SELECT groupArray(name) FROM system.columns WHERE concat(database, '.', table) = ?", []any{r.live(t)}, &columns); err != nil {
		return err
	}
	for _, column := range t.Columns {
		if !slices.Contains(columns, column) {
			return fmt.Errorf("table %s of database %s lacks column %s of the backup, which was added by hand: add it first", t.Name, r.name, column)
		}
	}
	for _, statement := range []string{
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s AS %s", r.staging(t.Name), r.live(t)),
		fmt.Sprintf("ALTER TABLE %s MODIFY SETTING max_bytes_to_merge_at_max_space_in_pool = 1, parts_to_delay_insert = 0, parts_to_throw_insert = 1000000", r.staging(t.Name)),
		"SYSTEM STOP TTL MERGES " + r.staging(t.Name),
	} {
		if err := r.exec(ctx, statement); err != nil {
			return fmt.Errorf("create the staging table of %s: %w", t.Name, err)
		}
	}
	return nil
}

const (
	loadRows = 500_000          // of one insert, which creates one part per month
	loadTime = 10 * time.Minute // of one insert
	oneBlock = "1099511627776"  // rows or bytes: the whole input is one block
)

// Load inserts a dumped file. Every insert has a token of the restore, the file, and its number: an
// interrupted file is completed.
func (r *Restore) Load(ctx context.Context, t DumpTable, file string, from io.Reader) (rows uint64, err error) {
	item := t.Name + "/" + file
	f := native.NewFile(from)
	for number, more := 0, f.Next(); more; number++ {
		if more, err = r.insertBlocks(ctx, t, fmt.Sprintf("restore-%s:%s:%d", r.id, item, number), f); err != nil {
			return f.Rows, err
		}
	}
	if f.Err != nil {
		return f.Rows, fmt.Errorf("read %s: %w", item, f.Err)
	}
	return f.Rows, r.Note(ctx, item)
}

// insertBlocks inserts the block read from f and following ones, as many as make one insert, and reads the
// first of the next.
func (r *Restore) insertBlocks(ctx context.Context, t DumpTable, token string, f *native.File) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	settings, err := r.insertSettings(ctx, t.Name, token, loadTime)
	if err != nil {
		return false, storeError("insert into "+r.staging(t.Name), err)
	}
	input, sent := f.Block.Input(), 0
	more = true
	err = r.send(ctx, ch.Query{
		Body:    fmt.Sprintf("INSERT INTO %s %s VALUES", r.staging(t.Name), input.Columns()),
		QueryID: token + "-" + r.attempt(),
		Input:   input,
		OnInput: func(context.Context) error {
			if sent += f.Block.Rows; sent < loadRows {
				more = f.Next()
			}
			if sent >= loadRows || !more {
				input.Reset()
				return io.EOF
			}
			return nil
		},
		Settings: append(settings,
			ch.Setting{Key: "min_insert_block_size_rows", Value: oneBlock, Important: true}, // one part per month and one token
			ch.Setting{Key: "min_insert_block_size_bytes", Value: oneBlock, Important: true}),
	})
	if err != nil {
		return false, storeError("insert into "+r.staging(t.Name), err)
	}
	if more {
		more = f.Next()
	}
	return more, nil
}

// Compare fails unless the staging table has these rows, by number and sum of hashes.
func (r *Restore) Compare(ctx context.Context, t DumpTable, rows, digest uint64) error {
	hash, err := r.rowDigest(ctx, stagingPrefix+t.Name, t.Columns)
	if err != nil {
		return err
	}
	var gotRows, gotDigest uint64
	if err := r.row(ctx, "verify "+t.Name, fmt.Sprintf("SELECT count(), sum(%s) FROM %s", hash, r.staging(t.Name)), nil, &gotRows, &gotDigest); err != nil {
		return err
	}
	if gotRows != rows || gotDigest != digest {
		return fmt.Errorf("table %s of the backup has %d rows, but %d rows or other ones were restored: drop database %s and start over", t.Name, rows, gotRows, r.name)
	}
	return nil
}

// Publish moves the table into place. It is idempotent.
func (r *Restore) Publish(ctx context.Context, t DumpTable) error {
	if err := r.replacePartitions(ctx, r.staging(t.Name), r.live(t)); err != nil {
		return fmt.Errorf("move %s into place: %w", t.Name, err)
	}
	return nil
}

// Finish removes the staging tables. From here on ingesters start.
func (r *Restore) Finish(ctx context.Context, tables []DumpTable) error {
	for _, t := range tables {
		if err := r.exec(ctx, "DROP TABLE IF EXISTS "+r.staging(t.Name)+" SYNC"); err != nil {
			return fmt.Errorf("remove %s: %w", r.staging(t.Name), err)
		}
	}
	if err := r.exec(ctx, fmt.Sprintf("DROP TABLE IF EXISTS %s.%s SYNC", r.name, restoring)); err != nil {
		return fmt.Errorf("finish the restore: %w", err)
	}
	return nil
}
