package warehouse_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/record"
)

// testdata/first is a data folder of the first version: its migrations as they
// were, and rows as SQL. It is what installations have, so it never changes once
// there are any: what must be different is a migration of a higher number. Until
// then `go test ./pkg/warehouse -run Forward -update` makes it again.
const first = "testdata/first"

func TestMigrationsGoForward(t *testing.T) {
	if *update {
		writeFirst(t)
	}
	_, url := clickhousetest.FreshDatabase(t)
	db := openURL(t, url)
	if err := db.MigrateAs(t.Context(), first+"/migrations"); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"records", "changes"} {
		sql, err := os.ReadFile(filepath.Join(first, table+".sql"))
		if err != nil {
			t.Fatal(err)
		}
		query(t, db, strings.Replace(string(sql), "INSERT INTO "+table, "INSERT INTO {db}."+table, 1))
	}
	// What people can ask for in the first version, and what the answers are.
	questions := map[string]string{}
	for _, line := range strings.Split(query(t, db, `SELECT table, arrayStringConcat(groupArray('"' || name || '"'), ', ') FROM (
		SELECT table, name FROM system.columns WHERE database = '{db}' AND table NOT LIKE '.inner%' AND table NOT LIKE '%_mv' AND table != 'migrations' AND type NOT LIKE 'AggregateFunction%'
		ORDER BY table, position) GROUP BY table ORDER BY table`), "\n") {
		table, columns, _ := strings.Cut(line, "\t")
		questions[table] = fmt.Sprintf("SELECT %s FROM {db}.%s ORDER BY ALL", columns, table)
		if strings.HasPrefix(table, "v_") { // may come to say it better, but not by other names
			questions[table] += " LIMIT 0"
		}
	}
	answers := func() map[string]string {
		all := map[string]string{}
		for table, question := range questions {
			all[table] = query(t, db, question)
		}
		return all
	}
	before := answers()
	for _, table := range []string{"records", "counts_1m", "sources", "process_instances", "element_instances", "jobs", "incidents", "changes"} {
		if before[table] == "" {
			t.Errorf("the first version has nothing in %s", table)
		}
	}

	if err := db.Migrate(t.Context()); err != nil {
		t.Fatalf("migrate what the first version made: %v", err)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, answers()); diff != "" {
		t.Errorf("what the first version stored is different now (-before +after):\n%s", diff)
	}
	rows := query(t, db, "SELECT count() FROM {db}.records")
	insert(t, db, life(t, 9, 0, 1, jobs(1000, 10)...))
	if got := query(t, db, "SELECT count() - 10, (SELECT sum(records) FROM {db}.counts_1m) - 10 FROM {db}.records"); got != rows+"\t"+rows {
		t.Errorf("rows and counted before 10 more: got %s, want %s of both", got, rows)
	}
}

// writeFirst makes testdata/first of this version.
func writeFirst(t *testing.T) {
	t.Helper()
	fatal := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	fatal(os.RemoveAll(first))
	fatal(os.CopyFS(first+"/migrations", os.DirFS("migrations")))
	db := open(t)
	event := func(id int, valueType, intent, value string) string {
		return fmt.Sprintf(`{"id":"1-%[1]d","partitionId":1,"position":%[1]d,"key":%[2]d,"recordType":"EVENT","valueType":%[3]q,"intent":%[4]q,"timestamp":%[5]d,"value":%[6]s}`,
			id, 2251799813685248+id, valueType, intent, received.UnixMilli()+int64(id), value)
	}
	instance := `{"bpmnProcessId":"order","processInstanceKey":"2251799813685249","processDefinitionKey":"77","version":3,"elementId":%q,"bpmnElementType":%q}`
	var rows record.Block = life(t, 7, 0, 1, append(jobs(100, 5),
		event(1, "PROCESS_INSTANCE", "ELEMENT_ACTIVATED", fmt.Sprintf(instance, "order", "PROCESS")),
		event(2, "PROCESS_INSTANCE", "ELEMENT_ACTIVATED", fmt.Sprintf(instance, "pay", "SERVICE_TASK")),
		event(3, "INCIDENT", "CREATED", `{"bpmnProcessId":"order","processInstanceKey":"2251799813685249","errorType":"JOB_NO_RETRIES","errorMessage":"no \u00e4nswer"}`),
		`{"valueType":"VARIABLE","intent":"CREATED","value":{"name":"x"},"something":{"else":[1,2]}}`)...)
	insert(t, db, rows)
	query(t, db, "INSERT INTO {db}.changes (stream_seq, changed_at, changed_by, kind, target_kind, target_key, members) VALUES (1, '2025-11-21 05:00:00.123', 'me', 'user_patched', 'user', 'me', ['a', 'b'])")
	for _, table := range []string{"records", "changes"} {
		sql := query(t, db, "SELECT * FROM {db}."+table+" ORDER BY ALL FORMAT SQLInsert SETTINGS output_format_sql_insert_table_name = '"+table+"', output_format_sql_insert_max_batch_size = 1000")
		fatal(os.WriteFile(filepath.Join(first, table+".sql"), []byte(sql+"\n"), 0o644))
	}
}
