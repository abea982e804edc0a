package warehouse_test

import (
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

var update = flag.Bool("update", false, "rewrite docs/analytics.md and testdata")

func TestMain(m *testing.M) { clickhousetest.Main(m) }

// received is the arrival time of all records of these tests.
var received = time.Date(2025, 11, 21, 5, 0, 0, 0, time.UTC)

// storedAt is when they were stored, ms since 1970: within any retention.
var storedAt = time.Now().Truncate(time.Hour).UnixMilli()

// open opens an empty database with the schema. Creating one costs as much as five inserts, so a
// database with an unchanged schema is emptied and reused.
func open(t testing.TB) *warehouse.DB {
	t.Helper()
	made.Lock()
	var name string
	if n := len(made.free); n > 0 {
		name, made.free = made.free[n-1], made.free[:n-1]
	}
	made.Unlock()
	if name != "" {
		t.Cleanup(func() { giveBack(t, name) })
		return openURL(t, clickhousetest.Shared(t).URL(name))
	}
	return openNew(t)
}

// openNew opens a database that no test has used.
func openNew(t testing.TB) *warehouse.DB {
	t.Helper()
	engine := clickhousetest.Shared(t)
	name := fmt.Sprintf("schema_%d", time.Now().UnixNano())
	clickhousetest.Exec(t, engine, "CREATE DATABASE "+name)
	t.Cleanup(func() { giveBack(t, name) })
	db := openURL(t, engine.URL(name))
	fatal.If(t, db.Migrate(t.Context()))
	made.Lock()
	defer made.Unlock()
	if made.schema == "" {
		made.schema = schemaOf(t, name)
	}
	return db
}

// made are idle databases: all of one schema, and empty.
var made struct {
	sync.Mutex
	free   []string
	schema string
}

// schemaOf is a database's tables and views with their comments, without its name.
func schemaOf(t testing.TB, database string) string {
	t.Helper()
	return clickhousetest.Exec(t, clickhousetest.Shared(t), "SELECT count(), sum(cityHash64(name, replaceAll(create_table_query, '"+database+"', ''))), (SELECT sum(cityHash64(object, value)) FROM "+database+".schema FINAL) FROM system.tables WHERE database = '"+database+"'")
}

// giveBack empties a database with the schema of Migrate, and drops any other.
func giveBack(t testing.TB, database string) {
	t.Helper()
	engine := clickhousetest.Shared(t)
	made.Lock()
	schema := made.schema
	made.Unlock()
	if t.Failed() || schemaOf(t, database) != schema {
		clickhousetest.Exec(t, engine, "DROP DATABASE "+database+" SYNC")
		return
	}
	for _, table := range strings.Fields(clickhousetest.Exec(t, engine, "SELECT name FROM system.tables WHERE database = '"+database+"' AND engine LIKE '%MergeTree' AND total_rows > 0 AND name != 'schema'")) {
		clickhousetest.Exec(t, engine, "TRUNCATE TABLE "+database+"."+table+" SYNC")
	}
	made.Lock()
	made.free = append(made.free, database)
	made.Unlock()
}

// aggregates are the tables that materialized views feed.
func aggregates(t testing.TB, db *warehouse.DB) []string {
	t.Helper()
	return strings.Fields(query(t, db, "SELECT name FROM system.tables WHERE database = '{db}' AND engine = 'AggregatingMergeTree' ORDER BY name"))
}

func openURL(t testing.TB, url string, businessKey ...string) *warehouse.DB {
	t.Helper()
	db, err := warehouse.Open(warehouse.Config{URL: url, BusinessKey: strings.Join(businessKey, "")}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	fatal.If(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

// query runs a statement in the shared engine, with {db} for the database, and returns its output
// without the last newline.
func query(t testing.TB, db *warehouse.DB, sql string) string {
	t.Helper()
	return strings.TrimSpace(clickhousetest.Exec(t, clickhousetest.Shared(t), strings.ReplaceAll(sql, "{db}", db.Database())))
}

func block(t testing.TB, lane int, seq uint64, records ...string) record.Block {
	t.Helper()
	m := flow.Message{
		Lane: lane, Seq: seq, Topic: fmt.Sprintf("flow.%d.record", lane), Received: received,
		Body: []byte("[" + strings.Join(records, ",") + "]"),
	}
	c := new(record.Columns)
	fatal.If(t, c.Append(&m))
	return record.Block{Columns: c, To: c.Rows(), Token: fmt.Sprintf("FLOW_%d@1:%d-%d:0", lane, seq, seq), StoredAt: storedAt}
}

// jobs are n records, with ids from first on, of n different minutes.
func jobs(first, n int) []string {
	all := make([]string, n)
	for i := range all {
		at := received.Add(-time.Duration(i) * time.Minute).UnixMilli()
		all[i] = fmt.Sprintf(`{"id":"1-%d","key":%d,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","timestamp":%d,
			"value":{"bpmnProcessId":"order-fulfillment","processInstanceKey":"%d","type":"payment.charge","retries":3}}`,
			first+i, 9007199254740993+first+i, at, first+i/10)
	}
	return all
}

// totals are changed by a duplicate insert: rows without FINAL, and the sum of the counters.
func totals(t testing.TB, db *warehouse.DB) string {
	t.Helper()
	return query(t, db, "SELECT (SELECT count() FROM {db}.records), (SELECT sum(records) FROM {db}.counts_1m), (SELECT count() FROM {db}.v_jobs)")
}
