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

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/google/go-cmp/cmp"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
)

// TestAttemptsThatOverlapStoreEachTokenOnce sends every block by two clients at
// the same time, as do an ingester that has lost its lane without noticing and
// the one that has it now. Some attempts are cut in their middle, the engine is
// killed again and again, and its logs of tokens are continued in new files.
// Table and both views must end with every row once.
func TestAttemptsThatOverlapStoreEachTokenOnce(t *testing.T) {
	const pairs, rows = 4, 200 // few rows: most of an insert is then the steps at its end
	const kills, enough = 6, 120
	e := clickhousetest.Start(t)
	clickhousetest.Exec(t, e, "CREATE DATABASE kills")
	c := open(t, e.URL("kills")+"?compress=lz4&max_open_conns=16&max_idle_conns=16&dial_timeout=1s")
	countedTable(t, c, "counted")
	for table, window := range map[string]int{"counted": 80, "counted_by_group": 40, "counted_by_rest": 40} { // a block has a part per partition
		run(t, c, fmt.Sprintf("ALTER TABLE %s MODIFY SETTING non_replicated_deduplication_window = %d", table, window))
	}

	var stop atomic.Bool
	var blocks, cut atomic.Uint64
	var inserting sync.WaitGroup
	for pair := range pairs {
		inserting.Go(func() {
			for n := 0; !stop.Load(); n++ {
				token := fmt.Sprintf("pair-%d:%d", pair, n)
				var attempts sync.WaitGroup
				for range 2 {
					attempts.Go(func() { cut.Add(sendUntilStored(t.Context(), c, token, n, rows)) })
				}
				attempts.Wait()
				blocks.Add(1)
			}
		})
	}
	for killed := 0; killed < kills || blocks.Load() < enough; killed++ {
		time.Sleep(300*time.Millisecond + rand.N(500*time.Millisecond))
		e.Kill()
		e.Restart()
	}
	time.Sleep(100 * time.Millisecond)
	stop.Store(true)
	inserting.Wait()

	t.Logf("%d blocks of %d rows, each sent twice at the same time, %d attempts failed", blocks.Load(), rows, cut.Load())
	logs, err := filepath.Glob(filepath.Join(e.Data(), "store", "*", "*", "deduplication_logs", "*"))
	if err != nil || len(logs) <= 3 || cut.Load() == 0 {
		t.Errorf("no attempt was cut, or no log was continued, which shows too little: %v, %v", logs, err)
	}
	all := blocks.Load() * rows
	if diff := cmp.Diff(counts{all, all, all}, counted(t, c, "counted")); diff != "" {
		t.Errorf("table and views (-want +got):\n%s", diff)
	}
}

// sendUntilStored repeats a block until it is acknowledged, and returns how
// often it was not. Every fourth attempt is cut within milliseconds.
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
