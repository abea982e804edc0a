package warehouse_test

import (
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/warehouse"
	"sluice/pkg/warehouse/schema"
)

// created is the statement of each table and view of a database, without its comment.
const created = "SELECT name, engine, create_table_query FROM system.tables WHERE database = '{db}' AND name NOT LIKE '.inner%' ORDER BY name"

// TestMigrateMayRunAgainAndAtTheSameTime also makes the database.
func TestMigrateMayRunAgainAndAtTheSameTime(t *testing.T) {
	name, url := clickhousetest.FreshDatabase(t)
	clickhousetest.Exec(t, clickhousetest.Shared(t), "DROP DATABASE "+name+" SYNC")
	var wg sync.WaitGroup
	for range 2 {
		db := openURL(t, url)
		wg.Go(func() {
			expect.NoError(t, db.Migrate(t.Context()))
		})
	}
	wg.Wait()
	db := openURL(t, url)
	before := query(t, db, created)
	fatal.If(t, db.Migrate(t.Context()))
	if diff := cmp.Diff(before, query(t, db, created)); diff != "" {
		t.Errorf("a second run changed the schema:\n%s", diff)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
	files, err := fs.Glob(schema.Files(), "*.sql")
	fatal.If(t, err)
	if got := query(t, db, "SELECT count(), countIf(object = 'format' AND value = '1'), countIf(object = 'version' AND value = '0') FROM {db}.schema FINAL"); got != fmt.Sprintf("%d\t1\t1", len(files)+2) {
		t.Errorf("objects, format and version of %d files: %s", len(files), got)
	}
}

func TestMigrateResumesAfterACrash(t *testing.T) {
	db := open(t)
	want := query(t, db, created)
	// As if it had been killed in the middle of the file of jobs.
	for _, s := range []string{"DROP VIEW {db}.v_jobs SYNC", "DROP TABLE {db}.jobs_mv SYNC", "DROP TABLE {db}.incidents_mv SYNC", "DROP TABLE {db}.incidents SYNC", "DROP TABLE {db}.changes SYNC",
		"ALTER TABLE {db}.schema DELETE WHERE object NOT IN ('format', 'records', 'counts_1m', 'sources', 'process_instances', 'element_instances') SETTINGS mutations_sync = 2"} {
		query(t, db, s)
	}
	if err := db.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "run sluice migrate") {
		t.Errorf("Check of half a schema: %v", err)
	}
	fatal.If(t, db.Migrate(t.Context()))
	expect.Equal(t, "schema", want, query(t, db, created))
}

// TestDatabasesThatAreRefused: Migrate leaves them unchanged. Each case harms what the one before left.
func TestDatabasesThatAreRefused(t *testing.T) {
	_, url := clickhousetest.FreshDatabase(t)
	db := openURL(t, url)
	fatal.If(t, db.Migrate(t.Context()))
	hash := query(t, db, "SELECT value FROM {db}.schema FINAL WHERE object = 'counts_1m'")
	for _, c := range []struct {
		name string
		harm []string
		want string
	}{
		{"of another schema", []string{"INSERT INTO {db}.schema (object, value) VALUES ('counts_1m', '00ff')"}, "counts_1m.sql has changed since the database was made (hash 00ff"},
		{"of a later format", []string{"INSERT INTO {db}.schema (object, value) VALUES ('counts_1m', '" + hash + "'), ('format', '7')"}, "has format 7"},
		{"of something else", []string{"DROP TABLE {db}.schema SYNC"}, "before format 1 (its last migration: unknown)"},
		{"of a version before formats had numbers", []string{
			"CREATE TABLE {db}.migrations (version UInt32, name String) ENGINE = MergeTree ORDER BY version",
			"INSERT INTO {db}.migrations VALUES (22, '0022_root.sql'), (23, '0023_jobs.sql')",
		}, "before format 1 (its last migration: 0023_jobs.sql)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, s := range c.harm {
				query(t, db, s)
			}
			before := query(t, db, created)
			for what, err := range map[string]error{"Migrate": db.Migrate(t.Context()), "Check": db.Check(t.Context())} {
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "use the version") || warehouse.Passing(err) {
					t.Errorf("%s: %v, want %q", what, err, c.want)
				}
			}
			if err := db.Compatible(t.Context()); (err == nil) != strings.Contains(c.want, "counts_1m") {
				t.Errorf("Compatible: %v", err)
			}
			if diff := cmp.Diff(before, query(t, db, created)); diff != "" {
				t.Errorf("it was changed:\n%s", diff)
			}
		})
	}
}

// later is the next version's schema: incidents have a severity. Binaries of this version can
// insert and read meanwhile.
func later(t *testing.T) fs.FS {
	t.Helper()
	files := fstest.MapFS{}
	err := fs.WalkDir(schema.Files(), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			text, reads := fs.ReadFile(schema.Files(), path)
			files[path], err = &fstest.MapFile{Data: text}, reads
		}
		return err
	})
	fatal.If(t, err)
	file := strings.NewReplacer("INDEX ix_created", "severity max(UInt8) = 0 -- invented\nINDEX ix_created", "\nerror_type error_message created_at", "\nerror_type error_message severity created_at").Replace(string(files["incidents.sql"].Data))
	files["incidents.sql"] = &fstest.MapFile{Data: []byte(file)}
	files["migrations/0001_severity.sql"] = &fstest.MapFile{Data: []byte(`ALTER TABLE {{.Table "incidents"}}{{.OnCluster}} ADD COLUMN IF NOT EXISTS severity SimpleAggregateFunction(max, UInt8) COMMENT 'invented' CODEC(ZSTD(1)) AFTER migrated;
{{replace "incidents"}};
{{replace "v_incidents"}};
`)}
	return files
}

// TestTheVersionBeforeRunsOnWhatIsMigrated kills a migration after each of its statements. It is
// then completed, and this version, the one before it, continues.
func TestTheVersionBeforeRunsOnWhatIsMigrated(t *testing.T) {
	files := later(t)
	_, url := clickhousetest.FreshDatabase(t)
	fresh := openURL(t, url)
	fatal.If(t, fresh.MigrateTo(t.Context(), files))
	of := func(db *warehouse.DB) string {
		return strings.ReplaceAll(query(t, db, created), db.Database(), "flow")
	}
	want := of(fresh)
	db := openNew(t)
	seq := uint64(0)
	both := func(when string) {
		t.Helper()
		seq++
		insert(t, db, block(t, 0, seq, jobs(int(seq)*100, 10)...))
		if err := db.Check(t.Context()); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		if got, want := totals(t, db), strings.TrimSpace(strings.Repeat(fmt.Sprint(10*seq, "\t"), 3)); got != want {
			t.Errorf("%s: rows, counted, jobs: got %s, want %s", when, got, want)
		}
	}
	both("before")
	for n, more := 1, true; more; n++ {
		var err error
		if more, err = db.RunStatements(t.Context(), files, n); err != nil {
			t.Fatal(err)
		}
		both(fmt.Sprint("killed after statement ", n))
	}
	for range 2 { // the second time nothing remains
		fatal.If(t, db.MigrateTo(t.Context(), files))
		if diff := cmp.Diff(want, of(db)); diff != "" {
			t.Errorf("a migrated schema differs from a fresh one (-fresh +migrated):\n%s", diff)
		}
	}
	expect.Equal(t, "the schema has version", "1", query(t, db, "SELECT value FROM {db}.schema FINAL WHERE object = 'version'"))
	if err := db.Migrate(t.Context()); err != nil {
		t.Errorf("this version, on what a later one has migrated: %v", err)
	}
	if diff := cmp.Diff(want, of(db)); diff != "" {
		t.Errorf("this version changed the schema of a later one:\n%s", diff)
	}
	both("after")
}

// TestHowTablesAreWritten: records and every table fed by a materialized view.
func TestHowTablesAreWritten(t *testing.T) {
	db := open(t)
	for _, table := range append(aggregates(t, db), "records") {
		made := query(t, db, "SELECT create_table_query FROM system.tables WHERE database = '{db}' AND name = '"+table+"'")
		for name, value := range schema.Writing {
			if setting := fmt.Sprintf("%s = %d", name, value); !strings.Contains(made, setting) {
				t.Errorf("%s lacks %s: %s", table, setting, made)
			}
		}
	}
}

// TestEveryViewDeclaresWhatItSelects. A name missing from a view's list silently drops the column;
// one missing from the SELECT fails when it is read. Types are those of the SELECT, so that only
// columns with a dictionary are converted.
func TestEveryViewDeclaresWhatItSelects(t *testing.T) {
	db := open(t)
	plain := regexp.MustCompile(`SimpleAggregateFunction\(\w+, (.*)\)\n`)
	dictionaries := strings.NewReplacer("LowCardinality(String)", "String")
	for _, view := range strings.Fields(query(t, db, "SELECT name FROM system.tables WHERE database = '{db}' AND engine = 'View'")) {
		declared := query(t, db, "SELECT name, type FROM system.columns WHERE database = '{db}' AND table = '"+view+"' ORDER BY position FORMAT TSVRaw") + "\n"
		selects := query(t, db, "SELECT as_select FROM system.tables WHERE database = '{db}' AND name = '"+view+"' FORMAT TSVRaw")
		var selected string
		for line := range strings.Lines(query(t, db, "DESCRIBE TABLE ("+selects+") FORMAT TSVRaw")) {
			cells := strings.Split(line, "\t")
			selected += cells[0] + "\t" + cells[1] + "\n"
		}
		if diff := cmp.Diff(dictionaries.Replace(plain.ReplaceAllString(selected, "$1\n")), declared); diff != "" {
			t.Errorf("%s (-selected +declared):\n%s", view, diff)
		}
	}
}

func TestTheSchemaForAnOldServerRuns(t *testing.T) {
	name, _ := clickhousetest.FreshDatabase(t)
	statements, err := warehouse.Statements(name, "", false, 24, 8)
	fatal.If(t, err)
	all := strings.Join(statements, ";\n")
	expect.Not(t, !strings.Contains(all, "tokenbf_v1(") || strings.Contains(all, "text("), "a server before 26.2 has no text index")
	for setting := range schema.Writing {
		expect.Not(t, strings.Contains(all, setting), "the server does not know %s", setting)
	}
	for _, s := range statements {
		clickhousetest.Exec(t, clickhousetest.Shared(t), s)
	}
}

var (
	keeperPath = regexp.MustCompile(`Replicated\w+\('([^']+)', '\{(?:shard\}-\{)?replica\}'\)`)
	divided    = regexp.MustCompile(` AS flow\.(\w+_local)\nENGINE = Distributed\('main', 'flow', '(\w+)', cityHash64\(source.*\) % 2\)$`)
	feed       = regexp.MustCompile(`(?s) TO flow\.\w+_local AS.*FROM flow\.records_local\b`)
)

// TestTheClusterSchema tests the additions for a cluster. The engine has no replicated tables, and
// can only parse them.
func TestTheClusterSchema(t *testing.T) {
	for single, onCluster := range map[bool]string{false: " ON CLUSTER 'main'", true: ""} {
		statements, err := warehouse.Statements("flow", "main", single, 26, 7, slices.Sorted(maps.Keys(schema.Writing))...)
		fatal.If(t, err)
		literal := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
		local, covered, paths := map[string]bool{}, map[string]bool{}, map[string]bool{}
		for _, s := range statements {
			clickhousetest.Exec(t, clickhousetest.Shared(t), "SELECT formatQuery('"+literal.Replace(s)+"')")
			first, body, _ := strings.Cut(s, "\n")
			name := strings.TrimPrefix(strings.Fields(strings.TrimPrefix(first, "CREATE MATERIALIZED VIEW IF NOT EXISTS "))[0], "flow.")
			expect.Not(t, strings.Contains(first, "ON CLUSTER") != !single || !strings.Contains(first, onCluster), "single %v: %s", single, first)
			switch d := divided.FindStringSubmatch(s); {
			case strings.HasPrefix(first, "CREATE DATABASE"):
			case strings.HasPrefix(first, "CREATE VIEW"):
				expect.Not(t, strings.Contains(body, "_local"), "a view of one shard: %s", first)
			case strings.HasPrefix(first, "CREATE MATERIALIZED VIEW"):
				expect.Not(t, !feed.MatchString(s) || !local[strings.TrimSuffix(name, "_mv")], "a materialized view feeds from its own shard: %s", first)
			case d != nil:
				if d[1] != d[2] || !local[strings.TrimSuffix(d[1], "_local")] {
					t.Errorf("%s covers %s and %s", first, d[1], d[2])
				}
				covered[strings.TrimSuffix(d[1], "_local")] = true
			default:
				table := strings.TrimPrefix(strings.Fields(first)[5], "flow.")
				if plain, is := strings.CutSuffix(table, "_local"); is {
					local[plain] = true
				}
				path := keeperPath.FindStringSubmatch(s)
				window := "non_replicated_deduplication_window = "
				if !single {
					window = " replicated_deduplication_window = "
				}
				if (path == nil) != single || path != nil && paths[path[1]] || !strings.Contains(s, window) || !strings.Contains(s, "fsync_after_insert = 1") {
					t.Errorf("table %s of single %v: %s", table, single, body)
				}
				if path != nil {
					paths[path[1]] = true
				}
			}
		}
		if diff := cmp.Diff(local, covered); diff != "" || len(local) < 10 {
			t.Errorf("tables of rows, and those over all shards (-rows +over all):\n%s", diff)
		}
	}
}
