package server_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/google/go-cmp/cmp"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
)

// result reads all rows of a statement, and its totals if it has any.
func result(ctx context.Context, t *testing.T, c driver.Conn, sql string) (rows [][]any, totals []any) {
	t.Helper()
	r, err := c.Query(ctx, sql)
	if err != nil {
		t.Fatalf("%.200s: %v", sql, err)
	}
	defer r.Close()
	types := r.ColumnTypes()
	scan := func(into func(...any) error) ([]any, error) {
		var fields []any
		for _, column := range types {
			fields = append(fields, reflect.New(column.ScanType()).Interface())
		}
		err := into(fields...)
		for i := range fields {
			field := reflect.ValueOf(fields[i]).Elem()
			if field.Kind() == reflect.Pointer && !field.IsNil() {
				field = field.Elem()
			}
			fields[i] = field.Interface()
		}
		return fields, err
	}
	for r.Next() {
		fields, err := scan(r.Scan)
		if err != nil {
			t.Fatalf("%.200s: %v", sql, err)
		}
		rows = append(rows, fields)
	}
	if err := r.Err(); err != nil {
		t.Fatalf("%.200s: %v", sql, err)
	}
	if totals, err = scan(r.Totals); err != nil {
		return rows, nil
	}
	return rows, totals
}

// TestNativeTotals: rows come as they do without totals, and then these, in every
// way to set a connection up.
func TestNativeTotals(t *testing.T) {
	t.Parallel()
	database, address := clickhousetest.FreshDatabase(t)
	const from = ` FROM (SELECT * FROM values('s String, n Nullable(Int64), at DateTime(\'Asia/Tokyo\'), l LowCardinality(String), a Array(String), f Float64, d Decimal(20, 3), b FixedString(3)',
		('', NULL, 1700000000, 'x', [''], nan, 1.25, 'ab'), ('a\n\t\\''\0\xff', 7, 0, '', ['\n', 'b'], -0.1, -2, 'a\0\n'), ('N', 8, 1, '\\N', [], inf, 0, '')))`
	for name, options := range connections {
		t.Run(name, func(t *testing.T) {
			c := open(t, address+options)
			for _, sql := range []string{
				"SELECT s, n, at, l, a, f, d, b, count() AS count" + from + " GROUP BY ALL %s ORDER BY s",
				"SELECT s, uniq(n) AS u" + from + " GROUP BY s %s HAVING s != '' ORDER BY s",
				"SELECT s" + from + " GROUP BY s %s ORDER BY s",
				"SELECT 1 AS a, sum(number) AS `a b` FROM numbers(100000) GROUP BY number %s ORDER BY number",
				"SELECT number, number AS twice, toString(number) FROM numbers(5) GROUP BY ALL %s ORDER BY 1 FORMAT CSV",
			} {
				want, _ := result(t.Context(), t, c, fmt.Sprintf(sql, ""))
				got, totals := result(t.Context(), t, c, fmt.Sprintf(sql, "WITH TOTALS"))
				if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)); diff != "" {
					t.Errorf("%.80s: rows without and with totals (-want +got):\n%.2000s", sql, diff)
				}
				if len(totals) == 0 {
					t.Errorf("%.80s: no totals", sql)
				}
			}
		})
	}
	c := open(t, address)
	run(t, c, "CREATE TABLE t (k UInt8, n UInt64) ENGINE = MergeTree ORDER BY k AS SELECT number % 3, number FROM numbers(10)")
	_, totals := result(t.Context(), t, c, "SELECT k, sum(n) FROM "+database+".t GROUP BY k WITH TOTALS")
	if want := []any{uint8(0), uint64(45)}; !slices.Equal(totals, want) {
		t.Errorf("totals are %v, want %v", totals, want)
	}
	// The driver takes the two rows of extremes for rows.
	extremes := clickhouse.Context(t.Context(), clickhouse.WithSettings(clickhouse.Settings{"extremes": 1}))
	rows, _ := result(extremes, t, c, "SELECT n, '' AS s FROM "+database+".t ORDER BY n LIMIT 3")
	if got, want := fmt.Sprint(rows), "[[0 ] [1 ] [2 ] [0 ] [2 ]]"; got != want {
		t.Errorf("rows with extremes are %s, want %s", got, want)
	}
	rows, totals = result(extremes, t, c, "SELECT k, count() AS n FROM "+database+".t GROUP BY k WITH TOTALS ORDER BY k")
	if got, want := fmt.Sprint(rows, totals), "[[0 4] [1 3] [2 3]] [0 10]"; got != want { // nor does it look behind totals
		t.Errorf("rows with extremes, and totals, are %s, want %s", got, want)
	}
	err := c.QueryRow(t.Context(), "SELECT throwIf(count() = 10) AS n FROM "+database+".t GROUP BY () WITH TOTALS").Scan(new(uint8))
	wantCode(t, err, 395)
}

// TestNativeProgress: a client hears of a statement while it runs.
func TestNativeProgress(t *testing.T) {
	t.Parallel()
	_, address := clickhousetest.FreshDatabase(t)
	c := open(t, address)
	var packets, rows atomic.Uint64
	ctx := clickhouse.Context(t.Context(), clickhouse.WithProgress(func(p *clickhouse.Progress) {
		packets.Add(1)
		rows.Add(p.Rows)
	}))
	var n uint64
	if err := c.QueryRow(ctx, "SELECT sum(sleepEachRow(0.02)) + 100 FROM numbers(100) SETTINGS max_block_size = 1, max_threads = 1, function_sleep_max_microseconds_per_block = 0").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if packets.Load() < 2 || rows.Load() != 100 {
		t.Errorf("%d packets of progress told of %d rows, want some, of 100", packets.Load(), rows.Load())
	}
}
