package server_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/google/go-cmp/cmp"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/server"
)

// TestKilledEngineStoresEachTokenOnce kills the engine again and again while
// blocks are inserted, each under a token of its own, and repeats every block
// that was not acknowledged under the same token. Table and both views must end
// with every row once.
func TestKilledEngineStoresEachTokenOnce(t *testing.T) {
	const workers, rows, kills = 4, 20_000, 6
	e := clickhousetest.Start(t)
	clickhousetest.Exec(t, e, "CREATE DATABASE kills")
	c := open(t, e.URL("kills")+"?compress=lz4&max_open_conns=8&dial_timeout=1s")
	countedTable(t, c, "counted")

	var stop atomic.Bool
	var blocks, repeats atomic.Uint64
	var inserting sync.WaitGroup
	for worker := range workers {
		inserting.Go(func() {
			for n := 0; !stop.Load(); n++ {
				token := fmt.Sprintf("worker-%d:%d", worker, n)
				for sendBlock(t.Context(), c, token, n, rows) != nil {
					if t.Context().Err() != nil {
						return
					}
					repeats.Add(1)
					time.Sleep(10 * time.Millisecond)
				}
				blocks.Add(1)
			}
		})
	}
	for range kills {
		time.Sleep(150*time.Millisecond + rand.N(250*time.Millisecond))
		e.Kill()
		e.Restart()
	}
	time.Sleep(100 * time.Millisecond)
	stop.Store(true)
	inserting.Wait()

	t.Logf("%d blocks of %d rows, %d kills, %d attempts failed", blocks.Load(), rows, kills, repeats.Load())
	if repeats.Load() == 0 {
		t.Error("no kill hit an INSERT, which shows nothing")
	}
	all := blocks.Load() * rows
	if diff := cmp.Diff(counts{all, all, all}, counted(t, c, "counted")); diff != "" {
		t.Errorf("table and views (-want +got):\n%s", diff)
	}
	e.Restart() // The gentle way, and the tokens are still known.
	if err := sendBlock(t.Context(), c, "worker-0:0", 0, rows); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(counts{all, all, all}, counted(t, c, "counted")); diff != "" {
		t.Errorf("after a repeated token (-want +got):\n%s", diff)
	}
}

// sendBlock inserts one block whose rows follow from its number alone.
func sendBlock(ctx context.Context, c driver.Conn, token string, number, rows int) error {
	batch, err := c.PrepareBatch(clickhouse.Context(ctx, clickhouse.WithSettings(tokenSettings(token))), "INSERT INTO counted")
	if err != nil {
		return err
	}
	for i := range rows {
		if err := batch.Append(int64(number*rows+i), fmt.Sprint("g", i%5)); err != nil {
			return err
		}
	}
	return batch.Send()
}

func TestStoppedEngineFinishesWhatRuns(t *testing.T) {
	e := clickhousetest.Start(t)
	c := open(t, e.URL("default"))
	run(t, c, "CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a")
	result := make(chan error, 1)
	go func() {
		result <- c.Exec(context.WithoutCancel(t.Context()), "INSERT INTO t SELECT number + sleepEachRow(0.01) FROM numbers(100) SETTINGS max_block_size = 10")
	}()
	for count(t, c, "system.processes WHERE query LIKE 'INSERT INTO t%'") == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	started := time.Now()
	e.Stop()
	if err := <-result; err != nil {
		t.Errorf("the statement that ran: %v", err)
	}
	if took := time.Since(started); took > 7*time.Second {
		t.Errorf("the stop took %v", took)
	}
	e.Restart()
	if n := count(t, c, "t"); n != 100 {
		t.Errorf("got %d rows, want 100", n)
	}
}

func TestStoppedEngineKillsWhatDoesNotEnd(t *testing.T) {
	e := clickhousetest.Start(t, func(cfg *server.Config) { cfg.Drain = 300 * time.Millisecond })
	c := open(t, e.URL("default"))
	result := make(chan error, 1)
	go func() {
		result <- c.Exec(context.WithoutCancel(t.Context()), "SELECT count() FROM numbers(1e12) WHERE NOT ignore(sipHash64(number))")
	}()
	for count(t, c, "system.processes WHERE query LIKE '%1e12%'") < 2 {
		time.Sleep(10 * time.Millisecond)
	}
	started := time.Now()
	e.Stop()
	if took := time.Since(started); took < 300*time.Millisecond || took > 5*time.Second {
		t.Errorf("the stop took %v", took)
	}
	wantCode(t, <-result, 394)
}
