package warehouse_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/fatal"
	"sluice/pkg/warehouse"
)

// TestModelsAreInABackup: the modeller's tables with their rows, and views of views, are restored
// on another server. Tables that cannot be copied are listed and created empty.
func TestModelsAreInABackup(t *testing.T) {
	t.Parallel() // its own engines
	from := clickhousetest.Start(t)
	for _, sql := range []string{
		"CREATE DATABASE flow", "CREATE DATABASE models",
		"CREATE TABLE models.sales (`process_instance_key` String, `day of it` Nullable(Date), amounts Map(String, String), tags Array(String)) ENGINE = ReplacingMergeTree ORDER BY process_instance_key PARTITION BY substring(process_instance_key, 1, 1)",
		"INSERT INTO models.sales VALUES ('17', '2026-01-02', {'net': '1.5'}, ['a', 'b']), ('18', NULL, {}, []), ('27', '2026-01-03', {'net': '2'}, ['c'])",
		"CREATE VIEW models.z AS SELECT count() AS n FROM models.sales", "CREATE VIEW models.a AS SELECT n + 1 AS n FROM models.z",
		"CREATE TABLE models.notes (text String) ENGINE = MergeTree ORDER BY text", "INSERT INTO models.notes VALUES ('Ada')",
		"CREATE TABLE models.heap (a Int8) ENGINE = Memory", "INSERT INTO models.heap VALUES (1)",
		"CREATE TABLE models.odd (a Map(String, Decimal(9, 2))) ENGINE = MergeTree ORDER BY tuple()",
		"CREATE TABLE models.empty (a Int8) ENGINE = MergeTree ORDER BY a",
	} {
		clickhousetest.Exec(t, from, sql)
	}
	db := openURL(t, from.URL("flow"), "order number")
	fatal.If(t, db.Migrate(t.Context()))
	tables, models, err := db.DumpTables(t.Context())
	fatal.If(t, err)
	var left []string
	for _, m := range models.Left {
		left = append(left, m.Name+": "+m.Why)
	}
	if diff := cmp.Diff([]string{"heap: the engine Memory is not copied", `odd: column a: type Map(String, Decimal(9, 2)): automatic column inference not supported for "Map(String, Decimal(9, 2))"`}, left); diff != "" || len(models.Views) != 2 {
		t.Errorf("%d views, -want +left:\n%s", len(models.Views), diff)
	}
	may, err := db.ModelsOf(t.Context(), warehouse.Subject{Source: "a", Keys: []string{"17"}})
	if diff := cmp.Diff([]string{"heap", "notes", "sales"}, may); diff != "" || err != nil {
		t.Errorf("%v, tables that may hold the instance, -want +got:\n%s", err, diff)
	}
	if may, err = db.ModelsOf(t.Context(), warehouse.Subject{Source: "a", Keys: []string{"99"}}); len(may) != 2 || err != nil {
		t.Errorf("%v, %v may hold an instance that no table has", err, may)
	}

	fatal.If(t, db.MakeFreezable(t.Context(), tables))
	fatal.If(t, db.Freeze(t.Context(), tables))
	clickhousetest.Exec(t, from, "INSERT INTO models.sales VALUES ('19', NULL, {}, [])") // after the moment
	files, err := db.DumpFiles(t.Context(), tables)
	fatal.If(t, err)

	to := clickhousetest.Start(t)
	clickhousetest.Exec(t, to, "CREATE DATABASE flow")
	schema, err := db.Schema(t.Context())
	fatal.If(t, err)
	r, err := openURL(t, to.URL("flow")).RestoreInto(t.Context(), "b1", schema)
	fatal.If(t, err)
	for _, table := range tables {
		fatal.If(t, r.Prepare(t.Context(), table))
		for _, f := range files {
			if f.Table != table.Name {
				continue
			}
			var file bytes.Buffer
			rows, digest, err := db.Dump(t.Context(), table, f, func(block []byte) error { _, err := file.Write(block); return err })
			fatal.If(t, err)
			if rows > 0 {
				_, err = r.Load(t.Context(), table, f.Name, &file)
				fatal.If(t, err)
			}
			fatal.If(t, r.Compare(t.Context(), table, rows, digest))
		}
		fatal.If(t, r.Publish(t.Context(), table))
	}
	fatal.If(t, r.MakeViews(t.Context(), models))
	fatal.If(t, r.MakeViews(t.Context(), models)) // as after a crash
	fatal.If(t, r.Finish(t.Context(), tables))
	fatal.If(t, db.Unfreeze(t.Context(), tables))
	for sql, want := range map[string]string{
		"SELECT * FROM models.sales ORDER BY 1 FORMAT CSV": `"17","2026-01-02","{'net':'1.5'}","['a','b']"` + "\n" + `"18",\N,"{}","[]"` + "\n" + `"27","2026-01-03","{'net':'2'}","['c']"` + "\n",
		"SELECT n FROM models.a":                           "4\n",
		"SELECT text FROM models.notes":                    "Ada\n",
		"SELECT count() FROM models.heap":                  "0\n",
		"SELECT count() FROM system.tables WHERE database = 'flow' AND name LIKE '%\\_\\_models%'":                                                      "0\n",
		"SELECT value, as_select LIKE '%order number%' FROM flow.schema, system.tables WHERE object = 'business_key' AND name = 'process_instances_mv'": "order number\t1\n",
	} {
		if got := clickhousetest.Exec(t, to, sql); got != want {
			t.Errorf("%s: %s", sql, got)
		}
	}
	if _, err := openURL(t, to.URL("flow")).RestoreBegun(t.Context(), "b2"); err == nil {
		t.Error("a server with models is taken for an empty one")
	}
}
