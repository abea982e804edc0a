package warehouse_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/warehouse"
)

func TestAnInsertThatTakesTooLongIsAnOutage(t *testing.T) {
	db := open(t)
	query(t, db, "CREATE TABLE {db}.slow (stream_seq UInt64) ENGINE = MergeTree ORDER BY tuple() SETTINGS non_replicated_deduplication_window = 100000")
	query(t, db, "CREATE MATERIALIZED VIEW {db}.slow_mv TO {db}.slow AS SELECT stream_seq FROM {db}.records WHERE sleepEachRow(0.4) = 0")
	b := block(t, 0, 1, jobs(1, 5)...)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var failed *flow.StoreError
	if err := db.Insert(ctx, b); !errors.As(err, &failed) || failed.Class != flow.ClassRetry {
		t.Fatalf("got %v, want class retry", err)
	}
	query(t, db, "DROP VIEW {db}.slow_mv SYNC")
	fatal.If(t, db.Insert(t.Context(), b))
	expect.Equal(t, "rows, counted, jobs", "5\t5\t5", totals(t, db))
}

func TestAnOutagePassesAndAWrongSchemaDoesNot(t *testing.T) {
	e := clickhousetest.Start(t)
	db := openURL(t, e.URL("flow"))
	if err := db.Check(t.Context()); err == nil || warehouse.Passing(err) {
		t.Errorf("a database that does not exist: %v, want an error that stays", err)
	}
	fatal.If(t, db.Migrate(t.Context()))
	e.Stop()
	for name, err := range map[string]error{"Migrate": db.Migrate(t.Context()), "Check": db.Check(t.Context()), "Ping": db.Ping(t.Context())} {
		expect.Not(t, err == nil || !warehouse.Passing(err), "%s while the engine is away: %v, want an error that passes", name, err)
	}
	e.Restart()
	if err := db.Check(t.Context()); err != nil {
		t.Errorf("Check after a restart: %v", err)
	}
}
