package warehouse_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/warehouse"
	"sluice/pkg/warehouse/schema"
)

// TestShardsAnswerAsOneServerDoes stores the simulated engines in two shards and runs all queries
// of one server. The shards are two databases of one engine with a cluster's schema. An embedded
// engine does not combine results of other servers (docs/clusters.md). Tables that read both
// therefore replace the Distributed tables; they merge nothing between the shards either.
// pkg/ingest tests the wire.
func TestShardsAnswerAsOneServerDoes(t *testing.T) {
	w := simulated(t)
	engine := clickhousetest.Shared(t)
	t.Cleanup(func() {
		for _, name := range []string{"sharded_in", "sharded", "sharded_1", "sharded_2"} {
			clickhousetest.Exec(t, engine, "DROP DATABASE IF EXISTS "+name+" SYNC")
		}
	})
	for _, statement := range ofTwoDatabases(t) {
		clickhousetest.Exec(t, engine, statement)
	}
	store(t, openURL(t, engine.URL("sharded_in")), 1, late(shuffled(again(w.sent))), 20_000)

	one := func(sql string) string { return clickhousetest.Exec(t, engine, sql) }
	both := func(sql string) string { return one(strings.ReplaceAll(sql, "flow.", "sharded.")) }
	for i := range 2 {
		if n := one(fmt.Sprintf("SELECT count() > (SELECT count() FROM sharded.records) / 4 FROM sharded_%d.records_local", i+1)); n != "1\n" {
			t.Errorf("shard %d has hardly any rows", i+1)
		}
	}
	for _, table := range strings.Fields("v_records v_process_instances v_element_instances v_jobs v_incidents v_variables v_user_tasks v_timers v_message_waits v_messages v_process_definitions v_decisions v_sources v_event_log v_lint") {
		// Arrays of sets have no order: their lengths are compared.
		sql := fmt.Sprintf("SELECT count(), sum(ifNull(cityHash64(tuple(*)), 0)) FROM (SELECT * APPLY(x -> if(toTypeName(x) LIKE '%%Array(%%', toString(length(toString(x))), ifNull(toString(x), 'NULL'))) FROM flow.%s)", table)
		if want, got := one(sql), both(sql); got != want || strings.HasPrefix(want, "0\t") && table != "v_lint" {
			t.Errorf("%s: one server has %s, two shards have %s", table, want, got)
		}
	}
	if sql := "SELECT source, minute, value_type, intent, sum(records) FROM flow.counts_1m GROUP BY ALL ORDER BY ALL"; one(sql) != both(sql) {
		t.Errorf("the counters differ:\n%s", cmp.Diff(one(sql), both(sql)))
	}
	questions, err := warehouse.Questions()
	fatal.If(t, err)
	for _, q := range questions {
		// Of both engines, and from one month to the next.
		params := map[string]string{"limit": "100000", "process": "claim", "from": "2025-10-31 23:30:00", "to": "2025-11-21 06:00:00", "first": "settle", "second": "approve"}
		of := q
		of.SQL = strings.ReplaceAll(q.SQL, "flow.", "sharded.")
		want, got := strings.Split(w.ask(t, q, params, "TabSeparated"), "\n"), strings.Split(w.ask(t, of, params, "TabSeparated"), "\n")
		slices.Sort(want)
		slices.Sort(got)
		expect.Equal(t, q.Name+" (-one +two shards)", want, got)
	}
}

var distributed = regexp.MustCompile(`ENGINE = Distributed\('main', 'sharded', '(\w+)', ([^\n]*) % 2\)`)

// ofTwoDatabases is the schema of a cluster whose shards are the databases sharded_1 and
// sharded_2. Local tables are created in both, all others in sharded. Rows inserted into
// sharded_in are divided by the cluster's sharding key.
func ofTwoDatabases(t *testing.T) []string {
	t.Helper()
	statements, err := warehouse.Statements("sharded", "main", true, 26, 7, slices.Sorted(maps.Keys(schema.Writing))...)
	fatal.If(t, err)
	all := []string{"CREATE DATABASE sharded", "CREATE DATABASE sharded_1", "CREATE DATABASE sharded_2", "CREATE DATABASE sharded_in"}
	for _, s := range statements[1:] {
		first, _, _ := strings.Cut(s, "\n")
		switch m := distributed.FindStringSubmatch(s); {
		case m != nil:
			s = strings.Replace(distributed.ReplaceAllString(s, "ENGINE = Merge(REGEXP('^sharded_[12]$$'), '^$1$$')"), " AS sharded.", " AS sharded_1.", 1)
			all = append(all, s)
			if m[1] != "records_local" {
				continue
			}
			all = append(all, "CREATE TABLE sharded_in.records AS sharded_1.records_local ENGINE = Null")
			for i := range 2 {
				all = append(all, fmt.Sprintf("CREATE MATERIALIZED VIEW sharded_in.to_%d TO sharded_%[1]d.records_local AS SELECT * FROM sharded_in.records WHERE %[2]s %% 2 = %[3]d", i+1, m[2], i))
			}
		case strings.HasSuffix(first, "_local") || strings.HasPrefix(first, "CREATE MATERIALIZED VIEW"):
			for _, shard := range []string{"sharded_1", "sharded_2"} {
				all = append(all, strings.NewReplacer("sharded.", shard+".", "'sharded'", "'"+shard+"'").Replace(s))
			}
		default:
			all = append(all, s)
		}
	}
	// In the schema, views may precede the tables they read.
	slices.SortStableFunc(all, func(a, b string) int { return order(a) - order(b) })
	return all
}

func order(statement string) int {
	switch {
	case strings.HasPrefix(statement, "CREATE DATABASE"):
		return 0
	case strings.HasPrefix(statement, "CREATE VIEW"):
		return 2
	case strings.HasPrefix(statement, "CREATE MATERIALIZED VIEW sharded_in"):
		return 3
	}
	return 1
}
