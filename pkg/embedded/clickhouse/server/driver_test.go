package server_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// connections are the variants of clickhouse-go's native protocol.
var connections = map[string]string{"plain": "", "lz4": "?compress=lz4", "zstd": "?compress=zstd"}

func open(t *testing.T, address string) driver.Conn {
	t.Helper()
	options, err := clickhouse.ParseDSN(address)
	fatal.If(t, err)
	c, err := clickhouse.Open(options)
	fatal.If(t, err)
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

// wantCode requires an exception of ClickHouse with this code.
func wantCode(t *testing.T, err error, code int32) {
	t.Helper()
	var exception *clickhouse.Exception
	fatal.When(t, !errors.As(err, &exception) || exception.Code != code, "got %v, want code %d", err, code)
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
		fatal.When(t, err != nil, "%s: %v", sql, err)
		expect.Equal(t, fmt.Sprintf("%s: columns", sql), []string{"a", "b"}, rows.Columns())
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
				"SELECT 1 INTO OUTFILE '/dev/null'":                    48,
				"INSERT INTO t FROM INFILE '/dev/null' FORMAT CSV":     48,
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
			fatal.If(t, err)
			for p := range 3 {
				batch.Append(int64(p), uint8(p))
			}
			wantCode(t, batch.Send(), 252)
			expect.Equal(t, "a failed INSERT stored rows", 0, count(t, c, "t"))
		})
	}
}

func TestDriverHasADatabasePerConnection(t *testing.T) {
	one, oneAddress := clickhousetest.FreshDatabase(t)
	two, twoAddress := clickhousetest.FreshDatabase(t)
	a, b := open(t, oneAddress), open(t, twoAddress)
	run(t, a, "CREATE TABLE t (x String) ENGINE = Memory")
	run(t, b, "CREATE TABLE t (x String) ENGINE = Memory")
	run(t, a, "INSERT INTO t VALUES (?)", one)
	run(t, b, "INSERT INTO t VALUES (?)", two)
	var got [2]string
	row(t, a, "SELECT x FROM t", &got[0])
	row(t, b, "SELECT x FROM t", &got[1])
	expect.Equal(t, "databases", [2]string{one, two}, got)
	wantCode(t, open(t, clickhousetest.Shared(t).URL("nosuch")).Ping(t.Context()), 81)
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
			fatal.If(t, err)
			defer rows.Close()
			var read, sum, value uint64
			var text string
			for rows.Next() {
				fatal.If(t, rows.Scan(&value, &text))
				fatal.When(t, text != fmt.Sprint(value%1000), "row %d: %d comes with %q", read, value, text)
				read++
				sum += value
			}
			if err := rows.Err(); err != nil || read != n || sum != n*(n-1)/2 {
				t.Errorf("got %d rows of sum %d, %v", read, sum, err)
			}
			expect.Not(t, progress == 0 || progress > n || profile != n, "progress has %d rows, profile %d, want %d", progress, profile, n)
		})
	}
}

func TestDriverCancelsAStatementWithItsContext(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	c := open(t, address)
	for name, sql := range map[string]string{
		"a SELECT that computes":   "SELECT count() FROM numbers(1e12) WHERE NOT ignore(sipHash64(number))",
		"a SELECT that sends rows": "SELECT number FROM numbers(1e12)",
		"a SELECT with a comment":  "SELECT count() FROM numbers(1e12) WHERE NOT ignore(sipHash64(number)) SETTINGS log_comment = 'mine'",
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
				fatal.When(t, time.Now().After(deadline), "the statement still runs in the engine")
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	expect.NoError(t, c.Ping(t.Context()))
}
