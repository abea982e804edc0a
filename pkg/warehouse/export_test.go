package warehouse

import (
	"context"
	"fmt"
	"os"
	"slices"

	"sluice/pkg/record"
	"sluice/pkg/warehouse/dialect"
	"sluice/pkg/warehouse/native"
)

// MigrateAs migrates with the files of a folder instead of those of this
// version.
func (db *DB) MigrateAs(ctx context.Context, folder string) error {
	all, err := migrationsIn(os.DirFS("."), folder)
	if err != nil {
		return err
	}
	return db.migrate(ctx, all)
}

// MigrateUntil migrates up to a version, and runs as many statements of that one as a
// migration has run that was killed after them. It says whether there are more.
func (db *DB) MigrateUntil(ctx context.Context, version uint32, statements int) (more bool, err error) {
	all, err := migrations()
	if err != nil {
		return false, err
	}
	at := slices.IndexFunc(all, func(m migration) bool { return m.version == version })
	if err := db.migrate(ctx, all[:at]); err != nil {
		return false, err
	}
	d, err := db.dialect(ctx)
	if err != nil {
		return false, err
	}
	of, err := d.Statements(all[at].name, all[at].source)
	for _, s := range of[:min(statements, len(of))] {
		if err == nil {
			err = db.run(ctx, s)
		}
	}
	return statements < len(of), err
}

// AddColumns adds the columns that later migrations add to records: this version, which
// names them, then inserts into the schema of an earlier one.
func (db *DB) AddColumns(ctx context.Context) error {
	var of record.Columns
	inserted := native.Columns(&of, 0, 0)
	for i, c := range of.All() {
		if c.Since == 0 {
			continue
		}
		if err := db.exec(ctx, fmt.Sprintf("ALTER TABLE %s.records ADD COLUMN IF NOT EXISTS %s %s", db.name, c.Name, inserted[i].Data.Type())); err != nil {
			return err
		}
	}
	return nil
}

// Statements renders every migration for a server of a version, or a cluster,
// that knows these settings.
func Statements(database, cluster string, single bool, major, minor int, settings ...string) ([]string, error) {
	all, err := migrations()
	if err != nil {
		return nil, err
	}
	d := dialect.Dialect{Database: database, Cluster: cluster, Single: single, Shards: 2, Version: dialect.Version{Major: major, Minor: minor}, Settings: settings}
	var statements []string
	for _, m := range all {
		s, err := d.Statements(m.name, m.source)
		if err != nil {
			return nil, err
		}
		statements = append(statements, s...)
	}
	return statements, nil
}

// StoreError and Classes are the error table.
var (
	StoreError = storeError
	Classes    = classes

	WritingSettings = dialect.WritingSettings

	BlockColumns = native.Columns
	Months       = months
)

// InsertSettings are the names of the settings that inserts send, to a cluster as
// if it had so many replicas of each shard.
func (db *DB) InsertSettings(ctx context.Context, replicas int64) (names []string, err error) {
	db.servers.replicas.Store(replicas)
	all, err := db.insertSettings(ctx, "records", "", db.cfg.InsertTimeout)
	for _, setting := range all {
		names = append(names, setting.Key)
	}
	return names, err
}
