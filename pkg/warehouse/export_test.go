package warehouse

import (
	"context"
	"errors"
	"io/fs"

	"sluice/pkg/warehouse/schema"
)

// MigrateTo migrates to a schema made of other files.
func (db *DB) MigrateTo(ctx context.Context, files fs.FS) error {
	s, err := schemaOf(files)
	if err != nil {
		return err
	}
	return db.migrate(ctx, s)
}

// RunStatements runs the first n statements of the only migration of files, as if killed after
// them. It reports whether more follow.
func (db *DB) RunStatements(ctx context.Context, files fs.FS, n int) (more bool, err error) {
	s, err := schemaOf(files)
	if err != nil {
		return false, err
	}
	d, err := db.server(ctx)
	if err != nil {
		return false, err
	}
	all, err := s.Migrations[0].Statements(d)
	for _, statement := range all[:min(n, len(all))] {
		if err == nil {
			err = db.everywhere(ctx, statement)
		}
	}
	return n < len(all), err
}

func schemaOf(files fs.FS) (*schema.Schema, error) {
	checks, err := lintSelect()
	if err != nil {
		return nil, err
	}
	return schema.Load(files, checks)
}

// Statements renders the schema for a server version or a cluster with these settings.
func Statements(database, cluster string, single bool, major, minor int, settings ...string) ([]string, error) {
	s, err := loadSchema()
	if err != nil {
		return nil, err
	}
	checks, err := lintSelect()
	d := schema.Server{Database: database, Cluster: cluster, Single: single, Shards: 2, Version: schema.Version{Major: major, Minor: minor}, Settings: settings, Checks: checks}
	statements := []string{"CREATE DATABASE IF NOT EXISTS " + database + d.OnCluster()}
	for _, f := range s.Objects {
		of, renders := f.Statements(d)
		statements, err = append(statements, of...), errors.Join(err, renders)
	}
	return statements, err
}

// StoreError and Classes are the error table.
var (
	StoreError = storeError
	Classes    = classes

	BlockColumns = blockColumns
	Months       = months
)

// InsertSettings are the names of the settings that inserts send to a cluster with this many
// replicas of each shard.
func (db *DB) InsertSettings(ctx context.Context, replicas int64) (names []string, err error) {
	db.servers.replicas.Store(replicas)
	all, err := db.insertSettings(ctx, "records", "", db.cfg.InsertTimeout)
	for _, setting := range all {
		names = append(names, setting.Key)
	}
	return names, err
}

// InSteps makes steps of this many trees until the test ends, and lets a program continue right
// after another one's step.
func InSteps(trees int) { treesAtOnce, anotherWorks = trees, 0 }
