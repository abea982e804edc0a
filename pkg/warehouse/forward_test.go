package warehouse_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/load/simulator"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
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

// Migrations that exchange what feeds a fold: instances by when they began, and jobs
// whose steps are columns.
const (
	byAge   = 21
	inSteps = 23
)

// goForward kills a migration after each of its statements, of a database of the first
// version, while records of an engine come in: in the end every fold and view is what
// really happened.
func goForward(t *testing.T, version uint32, instances int, arrive func([]sent) []sent) *warehouse.DB {
	t.Helper()
	_, url := clickhousetest.FreshDatabase(t)
	db := openURL(t, url)
	if err := errors.Join(db.MigrateAs(t.Context(), first+"/migrations"), db.AddColumns(t.Context())); err != nil {
		t.Fatal(err)
	}
	truth := new(simulator.Truth)
	var all []sent
	for r := range simulator.New(simulator.Config{Seed: 11, Instances: instances, Commands: true, Truth: truth}).All() {
		all = append(all, sent{"engine", r.Position, r.Timestamp, string(r.JSON)})
	}
	all = arrive(all)
	next := uint64(1)
	send := func(some int) {
		t.Helper()
		some = min(some, len(all))
		next, all = store(t, db, next, all[:some], some+1), all[some:]
	}
	send(len(all) / 2)
	some := len(all) / 20
	for n, more := 0, true; more; n++ {
		var err error
		if more, err = db.MigrateUntil(t.Context(), version, n); err != nil {
			t.Fatalf("killed after %d statements: %v", n, err)
		}
		send(some)
	}
	if len(all) == 0 {
		t.Fatal("there are no records left for after the migration")
	}
	for range 2 { // the second time nothing is left to do
		if err := db.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		send(len(all) / 2)
	}
	send(len(all))
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
	compareFolds(t, db, map[string]*simulator.Truth{"engine": truth})
	return db
}

// TestJobsGoForward lets most jobs have events from before migration 0023 and from
// after it, whatever came first, many of them in both: they are what they are when all
// is folded at once.
func TestJobsGoForward(t *testing.T) {
	t.Parallel()
	db := goForward(t, inSteps, 40, func(all []sent) []sent { return shuffled(again(all)) })
	const sorted = "SELECT * EXCEPT (steps) REPLACE (if(outcome > 0, '~', last_state) AS last_state, arraySort(failed) AS failed, arraySort(timed_out) AS timed_out, arraySort(errors_thrown) AS errors_thrown) FROM "
	at := strings.ReplaceAll(query(t, db, "SELECT as_select FROM system.tables WHERE database = '{db}' AND name = 'job_events_mv' FORMAT TSVRaw"), "\n", " ")
	want := query(t, db, strings.Replace(sorted, " EXCEPT (steps)", "", 1)+"("+at+") ORDER BY key")
	if got := query(t, db, sorted+"{db}.jobs FINAL ORDER BY key"); got != want || strings.Count(want, "\n") < 100 {
		t.Errorf("jobs (-folded at once +migrated):\n%s", cmp.Diff(want, got))
	}
	if n := query(t, db, "SELECT countIf(notEmpty(steps)) > 30, countIf(empty(steps)) > 30 FROM {db}.jobs FINAL"); n != "1\t1" {
		t.Errorf("jobs with steps of before the migration, and jobs without: %s", n)
	}
}

// TestInstancesGoForward does so with migration 0021: instances are what they are when
// all is folded at once.
func TestInstancesGoForward(t *testing.T) {
	t.Parallel()
	db := goForward(t, byAge, 120, inOrder)

	const sorted = "SELECT * REPLACE(arraySort(processes) AS processes, arraySort(incident_keys) AS incident_keys, arraySort(resolved_incident_keys) AS resolved_incident_keys, arraySort(job_failures) AS job_failures) FROM "
	at := strings.ReplaceAll(query(t, db, "SELECT as_select FROM system.tables WHERE database = '{db}' AND name = 'instances_mv' FORMAT TSVRaw"), "\n", " ")
	want := query(t, db, sorted+"("+at+") ORDER BY process_instance_key")
	if got := query(t, db, sorted+"{db}.instances FINAL ORDER BY process_instance_key"); got != want || strings.Count(want, "\n") < 100 {
		t.Errorf("instances (-folded at once +migrated):\n%s", cmp.Diff(want, got))
	}
	// Consoles of the version before read the old name, also with FINAL.
	for _, final := range []string{"", " FINAL"} {
		moved := query(t, db, "SELECT uniqExact(process_instance_key) FROM {db}.process_instances"+final+" WHERE process_instance_key IN (SELECT process_instance_key FROM {db}.v_process_instances WHERE length(processes) > 1)")
		if want := query(t, db, "SELECT countIf(length(processes) > 1) FROM {db}.v_process_instances"); moved != want || want == "0" {
			t.Errorf("process_instances%s has %s instances that were moved, want %s", final, moved, want)
		}
	}
}

// TestAMigrationWaitsForInserts begins an insert before there is the view by which
// instances hear of it, and migrates while it is under way.
func TestAMigrationWaitsForInserts(t *testing.T) {
	t.Parallel()
	_, url := clickhousetest.FreshDatabase(t)
	db := openURL(t, url)
	if _, err := db.MigrateUntil(t.Context(), byAge, 0); err != nil {
		t.Fatal(err)
	}
	if err := db.AddColumns(t.Context()); err != nil {
		t.Fatal(err)
	}
	insert(t, db, life(t, 7, 0, 1, jobs(1, 8)...))
	slow := "INSERT INTO " + db.Database() + ".records SELECT * REPLACE ('2251799813685777' AS process_instance_key) FROM " + db.Database() + ".records WHERE sleepEachRow(0.25) = 0"
	ended := make(chan error, 1)
	go func() {
		answer, err := http.Post(clickhousetest.Shared(t).HTTP()+"/?user=default", "text/plain", strings.NewReader(slow))
		if err == nil {
			defer answer.Body.Close()
			if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
				err = fmt.Errorf("status %d: %s", answer.StatusCode, text)
			}
		}
		ended <- err
	}()
	for deadline := time.Now().Add(30 * time.Second); query(t, db, "SELECT count() FROM system.processes WHERE query_kind = 'Insert' AND position(query, '{db}.records') > 0") == "0"; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the insert does not begin")
		}
	}
	if err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := query(t, db, "SELECT uniqExact(process_instance_key) FROM {db}.instances WHERE process_instance_key = '2251799813685777'"); n != "1" {
		t.Errorf("%s instances of an insert that began before the migration, want 1", n)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
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
