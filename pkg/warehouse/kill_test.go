package warehouse_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/warehouse"
)

// TestAnEngineThatDiesInMidInsert kills the engine again and again while
// blocks are inserted, each until it goes through.
func TestAnEngineThatDiesInMidInsert(t *testing.T) {
	e := clickhousetest.Start(t)
	db, err := warehouse.Open(warehouse.Config{URL: e.URL("flow"), InsertTimeout: 20 * time.Second}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	fatal.If(t, err)
	defer db.Close()
	fatal.If(t, db.Migrate(t.Context()))
	const blocks, perBlock, kills = 7, 4000, 5
	failures := 0
	for n := range blocks {
		b := block(t, 0, uint64(n+1), jobs(1+n*perBlock, perBlock)...)
		killed := make(chan struct{})
		if n < kills {
			go func() {
				defer close(killed)
				time.Sleep(time.Duration(5+9*n) * time.Millisecond)
				e.Kill()
				e.Restart()
			}()
		} else {
			close(killed)
		}
		for {
			err := db.Insert(t.Context(), b)
			if err == nil {
				break
			}
			var failed *flow.StoreError
			if !errors.As(err, &failed) || failed.Class != flow.ClassRetry {
				t.Fatalf("a killed engine is no outage: %v", err)
			}
			failures++
			time.Sleep(50 * time.Millisecond)
		}
		<-killed
		// Its answer may have come just before the kill: then it is not
		// known to be stored, and it is inserted once more.
		fatal.If(t, db.Insert(t.Context(), b))
	}
	want := fmt.Sprintf("%d\t%d\t%d\n", blocks*perBlock, blocks*perBlock, blocks*perBlock)
	got := clickhousetest.Exec(t, e, "SELECT count(), uniqExact(id), (SELECT sum(records) FROM flow.counts_1m) FROM flow.records")
	if got != want {
		t.Errorf("rows, ids, counted: got %swant %s", got, want)
	}
	t.Logf("%d inserts failed in %d kills", failures, kills)
}

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
	if got, want := totals(t, db), "5\t5\t5"; got != want {
		t.Errorf("rows, counted, jobs: got %s, want %s", got, want)
	}
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
		if err == nil || !warehouse.Passing(err) {
			t.Errorf("%s while the engine is away: %v, want an error that passes", name, err)
		}
	}
	e.Restart()
	if err := db.Check(t.Context()); err != nil {
		t.Errorf("Check after a restart: %v", err)
	}
}
