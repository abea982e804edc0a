package server_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestAKilledEngineStoresEachTokenOnce kills the engine repeatedly while blocks are inserted, each
// under its own token. Every unacknowledged block is repeated under its token. Some attempts are
// cut midway, and the engine's logs of tokens are continued in new files. Table and both views
// must end with every row once.
func TestAKilledEngineStoresEachTokenOnce(t *testing.T) {
	for name, c := range map[string]struct {
		rows     int // of a block
		attempts int // concurrent
		window   int // of tokens, in parts: one per partition and view of a block
		enough   uint64
	}{
		"large blocks": {rows: 20_000, attempts: 1, window: 10_000, enough: 1},
		// As an ingester that was superseded without noticing, and the present owner. With few
		// rows most of an insert is its last steps.
		"by two clients at a time": {rows: 200, attempts: 2, window: 80, enough: 120},
	} {
		t.Run(name, func(t *testing.T) { storesEachTokenOnce(t, c.rows, c.attempts, c.window, c.enough) })
	}
}

func storesEachTokenOnce(t *testing.T, rows, attempts, window int, enough uint64) {
	const workers, kills = 4, 6
	e := clickhousetest.Start(t)
	clickhousetest.Exec(t, e, "CREATE DATABASE kills")
	c := open(t, e.URL("kills")+"?compress=lz4&max_open_conns=16&max_idle_conns=16&dial_timeout=1s")
	countedTable(t, c, "counted")
	for table, window := range map[string]int{"counted": window, "counted_by_group": window / 2, "counted_by_rest": window / 2} {
		run(t, c, fmt.Sprintf("ALTER TABLE %s MODIFY SETTING non_replicated_deduplication_window = %d", table, window))
	}

	var stop atomic.Bool
	var blocks, cut atomic.Uint64
	var inserting sync.WaitGroup
	for worker := range workers {
		inserting.Go(func() {
			for n := 0; !stop.Load(); n++ {
				token := fmt.Sprintf("worker-%d:%d", worker, n)
				var sending sync.WaitGroup
				for range attempts {
					sending.Go(func() { cut.Add(sendUntilStored(t.Context(), c, token, n, rows)) })
				}
				sending.Wait()
				blocks.Add(1)
			}
		})
	}
	for killed := range uint64(kills) {
		time.Sleep(200*time.Millisecond + rand.N(500*time.Millisecond))
		for blocks.Load() < enough*(killed+1)/kills { // on a busy machine too, each run stores some
			time.Sleep(10 * time.Millisecond)
		}
		e.Kill()
		e.Restart()
	}
	time.Sleep(100 * time.Millisecond)
	stop.Store(true)
	inserting.Wait()

	t.Logf("%d blocks of %d rows, each sent %d times at the same time, %d attempts failed", blocks.Load(), rows, attempts, cut.Load())
	expect.Not(t, cut.Load() == 0, "no attempt was cut, which shows nothing")
	logs, err := filepath.Glob(filepath.Join(e.Data(), "store", "*", "*", "deduplication_logs", "*"))
	expect.Not(t, err != nil || len(logs) <= 3 && window < 1000, "no log was continued, which shows too little: %v, %v", logs, err)
	all := blocks.Load() * uint64(rows)
	expect.Equal(t, "table and views", counts{all, all, all}, counted(t, c, "counted"))
	if window < 1000 {
		return // the first token has left the window
	}
	e.Restart() // a clean restart: the tokens are still in the window
	fatal.If(t, sendBlock(t.Context(), c, "worker-0:0", 0, rows))
	expect.Equal(t, "after a repeated token", counts{all, all, all}, counted(t, c, "counted"))
}

// sendUntilStored repeats a block until it is acknowledged, and returns the number of failures.
// Every fourth attempt is cut within milliseconds.
func sendUntilStored(ctx context.Context, c driver.Conn, token string, number, rows int) (failed uint64) {
	for ctx.Err() == nil {
		attempt, cut := context.WithCancel(ctx)
		if rand.N(4) == 0 {
			time.AfterFunc(rand.N(15*time.Millisecond), cut)
		}
		err := sendBlock(attempt, c, token, number, rows)
		cut()
		if err == nil {
			return failed
		}
		failed++
		time.Sleep(rand.N(10 * time.Millisecond))
	}
	return failed
}

// sendBlock inserts one block whose rows are derived from its number.
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
	expect.Equal(t, "rows", 100, count(t, c, "t"))
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
