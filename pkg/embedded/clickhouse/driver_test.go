package clickhouse_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/google/go-cmp/cmp"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
)

// connections are the ways clickhouse-go can be set up on the native protocol.
var connections = map[string]string{"plain": "", "lz4": "?compress=lz4", "zstd": "?compress=zstd"}

func open(t *testing.T, address string) driver.Conn {
	t.Helper()
	options, err := clickhouse.ParseDSN(address)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clickhouse.Open(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func run(t *testing.T, c driver.Conn, sql string, args ...any) {
	t.Helper()
	if err := c.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%.200s: %v", sql, err)
	}
}

// row scans one row, and one column of any type per dest.
func row(t *testing.T, c driver.Conn, sql string, dest ...any) {
	t.Helper()
	if err := c.QueryRow(t.Context(), sql).Scan(dest...); err != nil {
		t.Fatalf("%.200s: %v", sql, err)
	}
}

func count(t *testing.T, c driver.Conn, from string) (n uint64) {
	t.Helper()
	row(t, c, "SELECT count() FROM "+from, &n)
	return n
}

// wantCode checks that err is an exception of ClickHouse with this code.
func wantCode(t *testing.T, err error, code int32) {
	t.Helper()
	var exception *clickhouse.Exception
	if !errors.As(err, &exception) || exception.Code != code {
		t.Fatalf("got %v, want code %d", err, code)
	}
}

func TestDriverRoundTripsEveryTypeOfTheSchema(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	for name, suffix := range connections {
		t.Run(name, func(t *testing.T) {
			c := open(t, address+suffix)
			if err := c.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			run(t, c, `CREATE OR REPLACE TABLE types (
				s String, lc LowCardinality(String), lcn LowCardinality(Nullable(String)), fs FixedString(4),
				i32 Int32, i64 Int64, u8 UInt8, u16 UInt16, u32 UInt32, u64 UInt64, f Float64, b Bool,
				d DateTime('UTC'), d64 DateTime64(3, 'UTC'), day Date, uuid UUID, e Enum8('a' = 1, 'b' = 2), dec Decimal(18, 4),
				ns Nullable(String), ni Nullable(Int64), nd Nullable(DateTime64(3, 'UTC')),
				as Array(String), ai Array(Int64), aalc Array(Array(LowCardinality(String))), ani Array(Nullable(Int64)),
				m Map(String, Int64), mlc Map(LowCardinality(String), Array(String)), t Tuple(x Int64, y LowCardinality(String)), tt Tuple(String, Nullable(Int64)),
				sum SimpleAggregateFunction(sum, UInt64), last SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))),
				uniq SimpleAggregateFunction(groupUniqArrayArray, Array(String))
			) ENGINE = MergeTree ORDER BY i64`)
			at := time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC)
			text, number, low := "täxt\x00\n", int64(-1<<63), "low"
			rows := [][]any{
				{"", "", (*string)(nil), "abcd", int32(0), int64(0), uint8(0), uint16(0), uint32(0), uint64(0), 0.0, false,
					time.Unix(0, 0).UTC(), time.Unix(0, 0).UTC(), time.Unix(0, 0).UTC(), "00000000-0000-0000-0000-000000000000", "a", "0",
					(*string)(nil), (*int64)(nil), (*time.Time)(nil),
					[]string{}, []int64{}, [][]string{}, []*int64{},
					map[string]int64{}, map[string][]string{}, map[string]any{"x": int64(0), "y": ""}, []any{"", (*int64)(nil)},
					uint64(0), (*time.Time)(nil), []string{}},
				{"täxt\x00\n'\\", "low", &low, "efgh", int32(-1 << 31), int64(1<<63 - 1), uint8(255), uint16(65535), uint32(1<<32 - 1), uint64(1<<64 - 1), -1.5e300, true,
					at.Truncate(time.Second), at, at.Truncate(24 * time.Hour), "61f0c404-5cb3-11e7-907b-a6006ad3dba0", "b", "-12345.6789",
					&text, &number, &at,
					[]string{"a", "", text}, []int64{1, -1}, [][]string{{"x", "y"}, {}, {"x"}}, []*int64{&number, nil},
					map[string]int64{"k": -9}, map[string][]string{"k": {"v", "w"}}, map[string]any{"x": int64(7), "y": "low"}, []any{"z", &number},
					uint64(99), &at, []string{"u"}},
			}
			insert(t, c, "types", rows...)
			for i, want := range rows {
				got, err := c.Query(t.Context(), "SELECT * EXCEPT (dec), toString(dec) AS dec FROM types ORDER BY i64 LIMIT 1 OFFSET ?", i)
				if err != nil {
					t.Fatal(err)
				}
				if !got.Next() {
					t.Fatalf("row %d is missing: %v", i, got.Err())
				}
				want = append(append(append([]any{}, want[:17]...), want[18:]...), want[17])
				compareRow(t, got, want)
				got.Close()
			}
			var nulls uint64
			row(t, c, "SELECT countIf(lcn IS NULL) + countIf(ni IS NULL) + countIf(last IS NULL) FROM types", &nulls)
			if nulls != 3 {
				t.Errorf("got %d NULLs, want 3", nulls)
			}
		})
	}
}

// insert sends rows as one block.
func insert(t *testing.T, c driver.Conn, table string, rows ...[]any) {
	t.Helper()
	batch, err := c.PrepareBatch(t.Context(), "INSERT INTO "+table)
	if err != nil {
		t.Fatalf("prepare: %v", err)
	}
	for _, values := range rows {
		if err := batch.Append(values...); err != nil {
			t.Fatalf("append: %v", err)
		}
	}
	if err := batch.Send(); err != nil {
		t.Fatalf("send: %v", err)
	}
}

// compareRow compares the values of a row by how they print, which is the same
// for what the driver takes and what it gives.
func compareRow(t *testing.T, got driver.Rows, want []any) {
	t.Helper()
	types := got.ColumnTypes()
	values := make([]any, len(types))
	for i := range types {
		values[i] = newOf(types[i])
	}
	if err := got.Scan(values...); err != nil {
		t.Fatal(err)
	}
	for i, value := range values {
		if diff := cmp.Diff(show(want[i]), show(value)); diff != "" {
			t.Errorf("column %s %s (-want +got):\n%s", types[i].Name(), types[i].DatabaseTypeName(), diff)
		}
	}
}

func TestDriverGetsColumnsOfAnEmptyResult(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	c := open(t, address)
	run(t, c, "CREATE TABLE empty (a Int64, b LowCardinality(String)) ENGINE = MergeTree ORDER BY a")
	for _, sql := range []string{
		"SELECT a, b FROM empty",
		"SELECT a, b FROM empty; -- nothing there",
		"WITH 1 AS x SELECT a, b FROM empty WHERE a = x ORDER BY a LIMIT 3 SETTINGS max_threads = 1",
		"(SELECT a, b FROM empty UNION ALL SELECT a, b FROM empty)",
		"SELECT a, b FROM empty FORMAT Native",
	} {
		rows, err := c.Query(t.Context(), sql)
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		if diff := cmp.Diff([]string{"a", "b"}, rows.Columns()); diff != "" {
			t.Errorf("%s: columns (-want +got):\n%s", sql, diff)
		}
		if rows.Next() || rows.Err() != nil {
			t.Errorf("%s: got a row or %v", sql, rows.Err())
		}
		rows.Close()
	}
}

func TestDriverGetsExceptionsWithTheirCodes(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	for name, suffix := range connections {
		t.Run(name, func(t *testing.T) {
			c := open(t, address+suffix)
			run(t, c, "CREATE OR REPLACE TABLE t (a Int64, p UInt8) ENGINE = MergeTree ORDER BY a PARTITION BY p")
			for sql, code := range map[string]int32{
				"SELECT * FROM nosuch":                    60,
				"SELECT nosuch FROM t":                    47,
				"SELECT nosuch(1)":                        46,
				"SELEC 1":                                 62,
				"SELECT 1; SELECT 2":                      62,
				"CREATE TABLE t (a Int8) ENGINE = Memory": 57,
				"INSERT INTO t (a) VALUES ('x')":          6,
				"SELECT throwIf(number = 100000) FROM numbers(200000)": 395,
				"SELECT 1 SETTINGS nosuch = 1":                         115,
				"USE nosuch":                                           81,
				"CREATE USER u":                                        497,
			} {
				wantCode(t, c.Exec(t.Context(), sql), code)
			}
			_, err := c.PrepareBatch(t.Context(), "INSERT INTO nosuch")
			wantCode(t, err, 60)
			ctx := clickhouse.Context(t.Context(), clickhouse.WithSettings(clickhouse.Settings{"nosuch": 1}))
			wantCode(t, c.Exec(ctx, "SELECT 1"), 115)
			ctx = clickhouse.Context(t.Context(), clickhouse.WithSettings(clickhouse.Settings{"max_partitions_per_insert_block": 2}))
			batch, err := c.PrepareBatch(ctx, "INSERT INTO t")
			if err != nil {
				t.Fatal(err)
			}
			for p := range 3 {
				batch.Append(int64(p), uint8(p))
			}
			wantCode(t, batch.Send(), 252)
			if n := count(t, c, "t"); n != 0 {
				t.Errorf("a failed INSERT stored %d rows", n)
			}
		})
	}
}

func TestDriverSettingsHoldForOneStatementOnly(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	c := open(t, address+"?max_open_conns=1")
	value := func(ctx context.Context) (s string) {
		t.Helper()
		if err := c.QueryRow(ctx, "SELECT toString(getSetting('max_block_size'))").Scan(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	with := func(n int) context.Context {
		return clickhouse.Context(t.Context(), clickhouse.WithSettings(clickhouse.Settings{"max_block_size": n}))
	}
	var got []string
	got = append(got, value(t.Context()), value(with(11)), value(with(12)), value(t.Context()))
	run(t, c, "SET max_block_size = 13") // The session's own, to which it goes back.
	got = append(got, value(t.Context()), value(with(14)), value(t.Context()))
	if diff := cmp.Diff([]string{"65409", "11", "12", "65409", "13", "14", "13"}, got); diff != "" {
		t.Errorf("max_block_size (-want +got):\n%s", diff)
	}
}

func TestDriverStoresATokenOnceInTableAndViews(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	for name, suffix := range connections {
		t.Run(name, func(t *testing.T) {
			c := open(t, address+suffix)
			countedTable(t, c, "counted_"+name)
			send := func(token string, from, to int) {
				t.Helper()
				batch, err := c.PrepareBatch(clickhouse.Context(t.Context(), clickhouse.WithSettings(tokenSettings(token))), "INSERT INTO counted_"+name)
				if err != nil {
					t.Fatal(err)
				}
				for i := from; i < to; i++ {
					batch.Append(int64(i), fmt.Sprint("g", i%3))
				}
				if err := batch.Send(); err != nil {
					t.Fatal(err)
				}
			}
			send("one", 0, 1000)
			send("one", 0, 1000)
			send("two", 0, 1000) // Another token: stored, although its rows are the same.
			send("one", 0, 1000)
			if diff := cmp.Diff(counts{2000, 2000, 2000}, counted(t, c, "counted_"+name)); diff != "" {
				t.Errorf("table and views (-want +got):\n%s", diff)
			}
		})
	}
}

// tokenSettings are what our ingester sends with each INSERT.
func tokenSettings(token string) clickhouse.Settings {
	return clickhouse.Settings{
		"async_insert": 0, "insert_deduplicate": 1, "deduplicate_blocks_in_dependent_materialized_views": 1,
		"insert_deduplication_token": token, "max_partitions_per_insert_block": 100,
	}
}

// countedTable makes a table with two materialized views that count its rows.
func countedTable(t *testing.T, c driver.Conn, name string) {
	t.Helper()
	const window = " SETTINGS non_replicated_deduplication_window = 10000"
	run(t, c, "CREATE TABLE "+name+" (a Int64, g LowCardinality(String)) ENGINE = MergeTree ORDER BY a PARTITION BY a % 2"+window)
	for _, view := range []string{"_by_group", "_by_rest"} {
		run(t, c, "CREATE TABLE "+name+view+" (k String, n SimpleAggregateFunction(sum, UInt64)) ENGINE = AggregatingMergeTree ORDER BY k"+window)
	}
	run(t, c, "CREATE MATERIALIZED VIEW "+name+"_mv1 TO "+name+"_by_group AS SELECT g AS k, count() AS n FROM "+name+" GROUP BY k")
	run(t, c, "CREATE MATERIALIZED VIEW "+name+"_mv2 TO "+name+"_by_rest AS SELECT toString(a % 7) AS k, count() AS n FROM "+name+" GROUP BY k")
}

type counts struct{ Rows, ByGroup, ByRest uint64 }

func counted(t *testing.T, c driver.Conn, name string) (n counts) {
	t.Helper()
	row(t, c, fmt.Sprintf("SELECT (SELECT count() FROM %[1]s), (SELECT sum(n) FROM %[1]s_by_group), (SELECT sum(n) FROM %[1]s_by_rest)", name),
		&n.Rows, &n.ByGroup, &n.ByRest)
	return n
}

func TestDriverRunsSeveralConnectionsAtOnce(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	c := open(t, address+"?compress=lz4&max_open_conns=8&max_idle_conns=8")
	run(t, c, "CREATE TABLE t (worker Int64, n Int64) ENGINE = MergeTree ORDER BY worker")
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for round := range 5 {
				batch, err := c.PrepareBatch(t.Context(), "INSERT INTO t")
				if err != nil {
					t.Error(err)
					return
				}
				for n := range 500 {
					batch.Append(int64(worker), int64(round*500+n))
				}
				if err := batch.Send(); err != nil {
					t.Error(err)
				}
				var sum int64
				if err := c.QueryRow(t.Context(), "SELECT sum(n) FROM t WHERE worker = ?", int64(worker)).Scan(&sum); err != nil {
					t.Error(err)
				}
				last := int64((round + 1) * 500)
				if want := last * (last - 1) / 2; sum != want {
					t.Errorf("worker %d reads %d of its own rows' sum, want %d", worker, sum, want)
				}
			}
		})
	}
	group.Wait()
	if n := count(t, c, "t"); n != 8*5*500 {
		t.Errorf("got %d rows, want %d", n, 8*5*500)
	}
}

func TestDriverHasADatabasePerConnection(t *testing.T) {
	one, oneAddress := clickhousetest.FreshDatabase(t)
	two, twoAddress := clickhousetest.FreshDatabase(t)
	a, b := open(t, oneAddress+"?max_open_conns=1"), open(t, twoAddress)
	run(t, a, "CREATE TABLE t (x String) ENGINE = Memory")
	run(t, b, "CREATE TABLE t (x String) ENGINE = Memory")
	run(t, a, "INSERT INTO t VALUES (?)", one)
	run(t, b, "INSERT INTO t VALUES (?)", two)
	var got [4]string
	row(t, a, "SELECT x FROM t", &got[0])
	row(t, b, "SELECT x FROM t", &got[1])
	run(t, a, "USE "+two)
	row(t, a, "SELECT x FROM t", &got[2])
	row(t, a, "SELECT currentDatabase()", &got[3])
	if diff := cmp.Diff([4]string{one, two, two, two}, got); diff != "" {
		t.Errorf("databases (-want +got):\n%s", diff)
	}
	wantCode(t, open(t, clickhousetest.Shared(t).URL("nosuch")).Ping(t.Context()), 81)
}

func TestDriverKeepsTemporaryTablesOfAConnection(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	c := open(t, address+"?max_open_conns=1")
	run(t, c, "CREATE TEMPORARY TABLE mine (a Int64)")
	run(t, c, "INSERT INTO mine VALUES (1), (2)")
	if n := count(t, c, "mine"); n != 2 {
		t.Errorf("got %d rows, want 2", n)
	}
	wantCode(t, open(t, address).Exec(t.Context(), "SELECT * FROM mine"), 60)
}

func TestDriverReadsALargeResultBlockByBlock(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	for name, suffix := range connections {
		t.Run(name, func(t *testing.T) {
			c := open(t, address+suffix)
			var progress, profile uint64
			ctx := clickhouse.Context(t.Context(),
				clickhouse.WithProgress(func(p *clickhouse.Progress) { progress += p.Rows }),
				clickhouse.WithProfileInfo(func(p *clickhouse.ProfileInfo) { profile += p.Rows }))
			const n = 1_000_000
			rows, err := c.Query(ctx, "SELECT number, toString(number % 1000) AS s FROM numbers(?)", n)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			var read, sum, value uint64
			var text string
			for rows.Next() {
				if err := rows.Scan(&value, &text); err != nil {
					t.Fatal(err)
				}
				if text != fmt.Sprint(value%1000) {
					t.Fatalf("row %d: %d comes with %q", read, value, text)
				}
				read++
				sum += value
			}
			if err := rows.Err(); err != nil || read != n || sum != n*(n-1)/2 {
				t.Errorf("got %d rows of sum %d, %v", read, sum, err)
			}
			if progress == 0 || progress > n || profile != n {
				t.Errorf("progress says %d rows, profile %d, want %d", progress, profile, n)
			}
		})
	}
}

func TestDriverCancelsAStatementWithItsContext(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	c := open(t, address)
	for name, sql := range map[string]string{
		"a SELECT that computes":   "SELECT count() FROM numbers(1e12) WHERE NOT ignore(sipHash64(number))",
		"a SELECT that sends rows": "SELECT number FROM numbers(1e12)",
		"an INSERT of a SELECT":    "INSERT INTO FUNCTION null('a UInt64') SELECT number FROM numbers(1e12)",
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(300*time.Millisecond, cancel)
			started := time.Now()
			rows, err := c.Query(ctx, sql)
			if err == nil {
				for rows.Next() {
				}
				err = rows.Err()
				rows.Close()
			}
			if took := time.Since(started); took > 5*time.Second {
				t.Errorf("took %v (%v)", took, err)
			}
			running := "system.processes WHERE query LIKE '%1e12%' AND query NOT LIKE '%system.processes%'"
			for deadline := time.Now().Add(5 * time.Second); count(t, c, running) > 0; {
				if time.Now().After(deadline) {
					t.Fatal("the statement still runs in the engine")
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestDriverMayFlushABatchInBlocks(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	c := open(t, address+"?compress=lz4")
	run(t, c, "CREATE TABLE t (a Int64) ENGINE = MergeTree ORDER BY a")
	batch, err := c.PrepareBatch(t.Context(), "INSERT INTO t")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		batch.Append(int64(i))
		if i%1000 == 999 {
			if err := batch.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := batch.Send(); err != nil {
		t.Fatal(err)
	}
	if n := count(t, c, "t"); n != 3000 {
		t.Errorf("got %d rows, want 3000", n)
	}
	empty, err := c.PrepareBatch(t.Context(), "INSERT INTO t")
	if err != nil {
		t.Fatal(err)
	}
	if err := empty.Send(); err != nil {
		t.Errorf("an empty batch: %v", err)
	}
}

func withSettings(t *testing.T, settings clickhouse.Settings) context.Context {
	return clickhouse.Context(t.Context(), clickhouse.WithSettings(settings))
}
