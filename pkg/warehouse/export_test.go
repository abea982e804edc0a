package warehouse

import (
	"context"
	"os"
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

// Statements renders every migration for a server of a version, or a cluster,
// that knows these settings.
func Statements(database, cluster string, single bool, major, minor int, settings ...string) ([]string, error) {
	all, err := migrations()
	if err != nil {
		return nil, err
	}
	d := dialect{Database: database, Cluster: cluster, Single: single, Shards: 2, Version: version{major, minor}, Settings: settings}
	var statements []string
	for _, m := range all {
		s, err := d.statements(m.name, m.source)
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

	WritingSettings = writingSettings

	BlockColumns = blockColumns
	Months       = months
)
