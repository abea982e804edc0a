package ingest_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

// inMonth is a record of the nth month of 2000 and later, or before when these
// tests take place.
func inMonth(n, position int) string {
	return fmt.Sprintf(`{"partitionId":1,"position":%d,"timestamp":%d}`, position, time.Date(2000, time.Month(1+n), 5, 0, 0, 0, 0, time.UTC).UnixMilli())
}

// later moves the clock to when all of these months have been.
func later() { time.Sleep(10 * 366 * 24 * time.Hour) }

// TestOneMonthDoesNotHideAnother: a server that was killed in mid-insert has the
// rows of one month, and of another one only the token.
func TestOneMonthDoesNotHideAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		later()
		w := newWorld()
		killed := false
		w.insert = func(b record.Block) error {
			if killed {
				return nil
			}
			killed = true
			for i := range 2 {
				r := rowAt(b.Columns, i)
				w.table[r.place]++
				w.rows = append(w.rows, r)
			}
			w.tokens["table"][b.Claim.Token] = b.Columns.Rows()
			return &flow.StoreError{Class: flow.ClassRetry, Err: errors.New("killed")}
		}
		w.publish(posted("a", inMonth(1, 1), inMonth(1, 2), inMonth(2, 3)))
		i, stop := w.startIngester(t, ingest.Config{})
		time.Sleep(time.Minute)
		if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "halted") || !strings.Contains(err.Error(), "none of its rows of [200003]") {
			t.Errorf("Check says %v, want halted: none of its rows of [200003]", err)
		}
		stop()
		if w.done() != 0 {
			t.Error("the block was passed over")
		}
	})
}

// manyMonths are records of so many months, shuffled, and where they are stored
// as the first message.
func manyMonths(seed uint64, months, records int) (all []string, rows map[place]int) {
	r := rand.New(rand.NewPCG(seed, 2))
	rows = map[place]int{}
	for i := range records {
		all = append(all, inMonth(r.IntN(months), i+1))
		rows[place{1, i}] = 1
	}
	return all, rows
}

// TestABlockOfManyMonthsIsCut: each piece is an insert of at most 12 months,
// whatever fails in between.
func TestABlockOfManyMonthsIsCut(t *testing.T) {
	const months, records = 40, 400
	run := func(t *testing.T, seed uint64, faults func(step int, op string) fault) (steps int) {
		synctest.Test(t, func(t *testing.T) {
			later()
			w := newWorld()
			first, rows := manyMonths(seed, months, records)
			w.publish(posted("a", first...), posted("a", first[0], inMonth(3, records+1), inMonth(3, records+2)))
			rows[place{2, 1}], rows[place{2, 2}] = 1, 1
			w.faults = faults
			w.insert = func(b record.Block) error {
				from, to := rowsOf(b)
				if n := len(b.Columns.Months(from, to)); n > 12 {
					return fmt.Errorf("an insert of %d months", n)
				}
				return nil
			}
			w.settle(t, ingest.Config{})
			compare(t, w, outcome{
				Table: rows, View: rows, Dead: map[place]string{}, Bodies: map[place]string{}, Done: 2, Stored: 2,
				Totals: flow.Totals{Read: records + 3, Stored: records + 2, Repeated: 1},
			})
			if n := len(w.inserts()); faults(0, "") == none && n > 8 {
				t.Errorf("%d inserts for %d months", n, months)
			}
			steps = w.step
		})
		return steps
	}
	steps := run(t, 1, func(int, string) fault { return none })
	for _, f := range []fault{failed, applied, partly, crashedFirst, crashedAfter} {
		for step := 1; step <= steps; step++ {
			t.Run(fmt.Sprintf("step %d %v", step, f), func(t *testing.T) {
				run(t, 1, func(at int, _ string) fault {
					if at == step {
						return f
					}
					return none
				})
			})
		}
	}
	t.Run("a record of it is refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			later()
			w := newWorld()
			first, rows := manyMonths(2, months, records)
			w.publish(posted("a", first...))
			w.refuse = func(c *record.Columns, i int) bool { return c.Position[i] == 7 || c.Position[i] == 300 }
			delete(rows, place{1, 6})
			delete(rows, place{1, 299})
			w.settle(t, ingest.Config{})
			compare(t, w, outcome{
				Table: rows, View: rows, Done: 1, Stored: 1,
				Dead:   map[place]string{{1, 6}: "refused", {1, 299}: "refused"},
				Bodies: map[place]string{{1, 6}: first[6], {1, 299}: first[299]},
				Totals: flow.Totals{Read: records, Stored: records - 2, Dead: 2},
			})
		})
	})
}

// TestAnOldClaimIsCompletedByLooking: so much was inserted since it was made
// that the tables have forgotten its token.
func TestAnOldClaimIsCompletedByLooking(t *testing.T) {
	both := map[place]int{{1, 0}: 1, {1, 1}: 1, {1, 2}: 1}
	for _, tt := range []struct {
		name        string
		table, view []int // rows that the table and its views have, of the insert without an answer
		parts       uint64
		recount     []string
	}{
		{"nothing was inserted", nil, nil, 60_000, []string{"2000-02-05", "2000-03-05"}},
		{"all of it was inserted", []int{0, 1, 2}, []int{0, 1, 2}, 60_000, []string{"2000-02-05", "2000-03-05"}},
		{"the views have not heard of it", []int{0, 1, 2}, nil, 60_000, []string{"2000-02-05", "2000-03-05"}},
		{"the later month is missing", []int{0, 2}, nil, 60_000, []string{"2000-02-05", "2000-03-05"}},
		{"the earlier month is missing", []int{1}, []int{1}, 60_000, []string{"2000-02-05", "2000-03-05"}},
		{"its token is remembered", nil, nil, 100, nil},
	} {
		for _, crash := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, a crash in between: %v", tt.name, crash), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					later()
					w := newWorld()
					w.publish(posted("a", inMonth(1, 1), inMonth(2, 2), inMonth(1, 3)))
					p := &process{world: w, name: "first"}
					w.insert = func(b record.Block) error {
						if p.gone {
							return nil
						}
						p.gone = true
						for _, i := range tt.table {
							r := rowAt(b.Columns, i)
							w.table[r.place]++
							w.rows = append(w.rows, r)
						}
						for _, i := range tt.view {
							r := rowAt(b.Columns, i)
							w.view[r.place]++
							w.told = append(w.told, r)
						}
						return &flow.StoreError{Class: flow.ClassRetry, Err: errors.New("killed")}
					}
					_, stop := p.start(t, ingest.Config{Owner: "first"}, p.deps(), prometheus.NewRegistry())
					time.Sleep(time.Second)
					stop()
					w.mu.Lock()
					w.partsSince = tt.parts
					crashes := 0
					w.faults = func(_ int, op string) fault {
						if crash && crashes < 3 && (strings.HasPrefix(op, "insert") || strings.HasPrefix(op, "refold") || strings.HasPrefix(op, "swap to done 1")) {
							crashes++
							return []fault{crashedFirst, crashedAfter, applied}[crashes-1]
						}
						return none
					}
					w.mu.Unlock()
					w.settle(t, ingest.Config{})
					compare(t, w, outcome{
						Table: both, View: both, Dead: map[place]string{}, Bodies: map[place]string{}, Done: 1, Stored: 1,
						Totals: flow.Totals{Read: 3, Stored: 3}, Recount: tt.recount,
					})
				})
			})
		}
	}
}

// TestWhoStoodStillLooksBeforeItInserts: between the claim and its insert the
// process is stopped for hours, and others insert.
func TestWhoStoodStillLooksBeforeItInserts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.publish(posted("a", at(1, 1), `"no record"`))
		stood := false
		w.before = func(op string) {
			if strings.HasPrefix(op, "set aside") && !stood { // one loop sets aside, and it alone
				stood = true
				time.Sleep(5 * time.Hour)
				w.mu.Lock()
				defer w.mu.Unlock()
				w.partsSince = 60_000
			}
		}
		w.run(t, ingest.Config{}, 6*time.Hour)
		if len(w.ops("parts since")) == 0 || len(w.ops("stored")) == 0 {
			t.Errorf("it did not look before it inserted:\n%s", strings.Join(w.history, "\n"))
		}
		if diff := cmp.Diff(map[place]int{{1, 0}: 1}, w.table); diff != "" || w.position.Done != 1 {
			t.Errorf("done %d, stored (-want +got):\n%s", w.position.Done, diff)
		}
	})
}

// TestAPositionOfAnotherVersionHalts: a claim is never taken for something else
// than what it was written for.
func TestAPositionOfAnotherVersionHalts(t *testing.T) {
	for name, harm := range map[string]func(c *flow.Claim){
		"other rows are dropped":       func(c *flow.Claim) { c.Dropped = flow.FormatRuns([]flow.Run{{From: 0, To: 1}}) },
		"what is dropped is not told":  func(c *flow.Claim) { c.Dropped = "?" },
		"it ends after its last row":   func(c *flow.Claim) { c.From, c.To = 1, 9 },
		"it begins after its last row": func(c *flow.Claim) { c.From = 9 },
		"it ends before it begins":     func(c *flow.Claim) { c.From, c.To = 2, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.insert = func(record.Block) error { return &flow.StoreError{Class: flow.ClassRetry, Err: errors.New("away")} }
				w.publish(posted("a", at(1, 1), at(1, 2), at(1, 2), at(1, 3)))
				w.run(t, ingest.Config{}, time.Second)
				harm(w.position.Claim)
				w.insert = func(record.Block) error { return nil }
				i, stop := w.startIngester(t, ingest.Config{})
				time.Sleep(time.Minute)
				if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "halted") {
					t.Errorf("Check says %v, want halted", err)
				}
				stop()
				if len(w.table) > 0 {
					t.Errorf("it stored %v", w.table)
				}
			})
		})
	}
}

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
			return &flow.StoreError{Class: flow.ClassRetry, Err: errors.New("killed")}
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
