package warehouse_test

import (
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/warehouse"
)

var update = flag.Bool("update", false, "rewrite testdata/cluster.sql")

const schema = "SELECT name, engine, create_table_query FROM system.tables WHERE database = '{db}' AND name NOT LIKE '.inner%' ORDER BY name"

func TestMigrateMayRunAgainAndAtTheSameTime(t *testing.T) {
	_, url := clickhousetest.FreshDatabase(t)
	var wg sync.WaitGroup
	for range 4 {
		db := openURL(t, url)
		wg.Go(func() {
			if err := db.Migrate(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	db := openURL(t, url)
	before := query(t, db, schema)
	if err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, query(t, db, schema)); diff != "" {
		t.Errorf("a second run changed the schema:\n%s", diff)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
	files, err := fs.Glob(os.DirFS("migrations"), "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join(files[1:], "\n") // but the one that makes their table
	if got := query(t, db, "SELECT name FROM {db}.migrations FINAL ORDER BY version"); got != want {
		t.Errorf("applied migrations: got\n%s\nwant\n%s", got, want)
	}
}

func TestHowTablesAreWritten(t *testing.T) {
	db := open(t)
	for _, table := range []string{"records", "counts_1m", "sources", "instances", "element_instances", "jobs", "incidents", "variables", "user_tasks", "waits", "process_definitions", "decisions"} {
		created := query(t, db, "SELECT create_table_query FROM system.tables WHERE database = '{db}' AND name = '"+table+"'")
		for name, value := range warehouse.WritingSettings {
			if setting := fmt.Sprintf("%s = %d", name, value); !strings.Contains(created, setting) {
				t.Errorf("%s lacks %s: %s", table, setting, created)
			}
		}
	}
}

func TestMigrateGoesOnWhereACrashLeftIt(t *testing.T) {
	db := open(t)
	want := query(t, db, schema)
	// As if it had died in the middle of the third migration.
	for _, s := range []string{"DROP VIEW {db}.job_events_mv SYNC", "DROP TABLE {db}.incidents_mv SYNC", "DROP TABLE {db}.incidents SYNC",
		"DROP VIEW {db}.v_jobs SYNC", "DROP TABLE {db}.changes SYNC", "ALTER TABLE {db}.migrations DELETE WHERE version >= 3 SETTINGS mutations_sync = 2"} {
		query(t, db, s)
	}
	if err := db.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "lacks migration 0003_sources.sql") {
		t.Errorf("Check of half a schema: %v", err)
	}
	if err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, query(t, db, schema)); diff != "" {
		t.Errorf("schema (-want +got):\n%s", diff)
	}
}

func TestMigrateMakesTheDatabase(t *testing.T) {
	name, url := clickhousetest.FreshDatabase(t)
	db := openURL(t, url)
	query(t, db, "DROP DATABASE {db} SYNC")
	if err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Errorf("Check of %s: %v", name, err)
	}
}

func TestADatabaseOfANewerBinaryIsLeftAlone(t *testing.T) {
	db := open(t)
	query(t, db, "INSERT INTO {db}.migrations (version, name, checksum) VALUES (9999, '9999_future.sql', 'x')")
	if err := db.Migrate(t.Context()); err != nil {
		t.Errorf("Migrate: %v", err)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
}

func TestAMigrationThatWasChangedIsRefused(t *testing.T) {
	db := open(t)
	query(t, db, "INSERT INTO {db}.migrations (version, name, checksum) VALUES (2, '0002_counts.sql', 'another')")
	if err := db.Migrate(t.Context()); err == nil || !strings.Contains(err.Error(), "0002_counts.sql") {
		t.Errorf("Migrate: %v, want that 0002_counts.sql must not change", err)
	}
}

func TestTheSchemaForAnOldServerRuns(t *testing.T) {
	name, _ := clickhousetest.FreshDatabase(t)
	statements, err := warehouse.Statements(name, "", false, 24, 8)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(statements, ";\n")
	if !strings.Contains(all, "tokenbf_v1(") || strings.Contains(all, "text(") {
		t.Error("a server before 26.2 has no text index")
	}
	for setting := range warehouse.WritingSettings {
		if strings.Contains(all, setting) {
			t.Errorf("the server does not know %s", setting)
		}
	}
	for _, s := range statements {
		clickhousetest.Exec(t, clickhousetest.Shared(t), s)
	}
}

// TestTheClusterSchema compares the schema of a cluster with the golden file,
// and lets the engine, which cannot make replicated tables, parse it.
func TestTheClusterSchema(t *testing.T) {
	statements, err := warehouse.Statements("flow", "main", false, 26, 7, slices.Sorted(maps.Keys(warehouse.WritingSettings))...)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(statements, ";\n\n") + ";\n"
	const golden = "testdata/cluster.sql"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("cluster schema (-golden +rendered), -update accepts it:\n%s", diff)
	}
	literal := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	for _, s := range statements {
		clickhousetest.Exec(t, clickhousetest.Shared(t), "SELECT formatQuery('"+literal.Replace(s)+"')")
	}
}
