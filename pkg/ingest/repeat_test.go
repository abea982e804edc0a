package ingest_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

// TestATokenWithoutItsRowsHalts: a server that was killed in mid-insert may
// remember the token of a block and have none of its rows. It drops the block
// when it is repeated.
func TestATokenWithoutItsRowsHalts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		killed := false
		w.insert = func(b record.Block) error {
			if killed {
				return nil
			}
			killed = true
			w.tokens["table"][b.Claim.Token] = b.Columns.Rows()
			return &record.StoreError{Class: record.ClassRetry, Err: errors.New("killed")}
		}
		w.publish(message(rec("1"), rec("2")))
		i, stop := w.startIngester(t, ingest.Config{})
		time.Sleep(time.Minute)
		if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "halted") || !strings.Contains(err.Error(), "none of its rows") {
			t.Errorf("Check says %v, want halted: none of its rows", err)
		}
		if w.done() != 0 {
			t.Error("the block was passed over")
		}
		w.mu.Lock()
		clear(w.tokens["table"]) // the table is made to forget, its view is not
		w.mu.Unlock()
		time.Sleep(time.Minute)
		stop()
		if w.done() != 1 || len(w.table) != 2 || len(w.view) != 2 {
			t.Errorf("done %d, rows %v, in the view %v: want both records", w.done(), w.table, w.view)
		}
		for at, n := range w.view {
			if n != 1 || w.table[at] != 1 {
				t.Errorf("record %v is %d times in the table and %d times in the view, want once", at, w.table[at], n)
			}
		}
	})
}
