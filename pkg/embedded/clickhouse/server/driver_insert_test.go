package server_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// insert sends rows as one block.
func insert(t *testing.T, c driver.Conn, table string, rows ...[]any) {
	t.Helper()
	batch, err := c.PrepareBatch(t.Context(), "INSERT INTO "+table)
	fatal.When(t, err != nil, "prepare: %v", err)
	for _, values := range rows {
		if err := batch.Append(values...); err != nil {
			t.Fatalf("append: %v", err)
		}
	}
	if err := batch.Send(); err != nil {
		t.Fatalf("send: %v", err)
	}
}

// tokenSettings are the ingester's settings of each INSERT.
func tokenSettings(token string) clickhouse.Settings {
	return clickhouse.Settings{
		"async_insert": 0, "insert_deduplicate": 1, "deduplicate_blocks_in_dependent_materialized_views": 1,
		"insert_deduplication_token": token, "max_partitions_per_insert_block": 100,
	}
}

// countedTable creates a table with two materialized views that count its rows.
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

// TestDriverMayFlushABatchInBlocks: the server sends profile events after each block and at the
// end; some drivers, such as clickhouse-driver, wait for them.
func TestDriverMayFlushABatchInBlocks(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	c := open(t, address+"?compress=lz4")
	run(t, c, "CREATE TABLE t (a Int64) ENGINE = MergeTree ORDER BY a")
	sent := 0
	ctx := clickhouse.Context(t.Context(), clickhouse.WithProfileEvents(func([]clickhouse.ProfileEvent) { sent++ }))
	for rows, events := range map[int]int{3000: 4, 0: 1} {
		sent = 0
		batch, err := c.PrepareBatch(ctx, "INSERT INTO t")
		fatal.If(t, err)
		for i := range rows {
			batch.Append(int64(i))
			if i%1000 == 999 {
				fatal.If(t, batch.Flush())
			}
		}
		fatal.If(t, batch.Send())
		expect.Not(t, sent < events, "%d rows: profile events were sent %d times, want after each block and the end", rows, sent)
	}
	expect.Equal(t, "rows", 3000, count(t, c, "t"))
}

func withSettings(t *testing.T, settings clickhouse.Settings) context.Context {
	return clickhouse.Context(t.Context(), clickhouse.WithSettings(settings))
}

func TestDriverInsertsAsBlocksWhateverItsSettings(t *testing.T) {
	database, address := clickhousetest.FreshDatabase(t)
	c := open(t, address)
	run(t, c, "CREATE TABLE t (a Int64) ENGINE = MergeTree ORDER BY a")
	for name, settings := range map[string]clickhouse.Settings{
		"small blocks":     {"max_insert_block_size": 100},
		"small text reads": {"max_read_buffer_size": 1000},
		"in parallel":      {"input_format_parallel_parsing": 1, "max_insert_threads": 4, "min_chunk_bytes_for_parallel_parsing": 1},
		"asynchronously":   {"async_insert": 1, "wait_for_async_insert": 0},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, c, "TRUNCATE TABLE t")
			batch, err := c.PrepareBatch(withSettings(t, settings), "INSERT INTO t")
			fatal.If(t, err)
			for n := range 10_000 {
				batch.Append(int64(n))
			}
			fatal.If(t, batch.Send())
			var parts, rows uint64
			row(t, c, "SELECT count(), sum(rows) FROM system.parts WHERE active AND table = 't' AND database = '"+database+"'", &parts, &rows)
			expect.Not(t, parts != 1 || rows != 10_000, "got %d parts of %d rows, want one of 10000, at once", parts, rows)
		})
	}
	run(t, c, "TRUNCATE TABLE t")
	if err := c.Exec(clickhouse.Context(t.Context(), clickhouse.WithAsync(true)), "INSERT INTO t VALUES (?)", int64(1)); err != nil {
		t.Errorf("an asynchronous insert: %v", err)
	}
	expect.Equal(t, "an asynchronous insert stored rows", 1, count(t, c, "t"))
}
