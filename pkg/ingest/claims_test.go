package ingest_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

// passed moves the clock past all months of these tests.
func passed() { time.Sleep(10 * 366 * 24 * time.Hour) }

// months is a scene of a block of 40 shuffled months with a duplicate and a rejected row, and of a
// second block.
func months() (*world, outcome) {
	const records = 120
	passed()
	w := newWorld()
	w.refuse = func(c *record.Columns, i int) bool { return c.Position[i] == 7 }
	r := rand.New(rand.NewPCG(1, 2))
	rows := map[place]int{}
	var first []string
	for i := range records {
		first = append(first, inMonth(r.IntN(40), i+1))
		rows[place{1, i}] = 1
	}
	w.publish(posted("a", first...), posted("a", first[0], inMonth(3, records+1), first[1], inMonth(3, records+2)))
	rows[place{2, 1}], rows[place{2, 3}] = 1, 1
	delete(rows, place{1, 6})
	return w, outcome{
		Table: rows, View: rows, Dead: map[place]string{{1, 6}: "refused"}, Bodies: map[place]string{{1, 6}: first[6]}, Done: 2, LastRow: 2,
		Totals: flow.Totals{Read: records + 4, Stored: records + 1, Deduplicated: 2, DeadLettered: 1},
	}
}

// TestA25thMonthEndsABlock unless a single message has more months.
func TestA25thMonthEndsABlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passed()
		w := newWorld()
		for n := range 60 {
			w.publish(posted("a", inMonth(n, n+1), inMonth(n, 100+n)))
		}
		w.run(t, ingest.Config{}, time.Minute)
		claims := map[string]int{}
		for _, line := range w.ops("swap") {
			if _, claim, ok := strings.Cut(line, " 0: "); ok {
				claims[line] = strings.Count(claim, "open") + strings.Count(claim, "waiting")
			}
		}
		for line, n := range claims {
			expect.Not(t, n > 25, "a claim of %d pieces: %s", n, line)
		}
		if w.done() != 60 || len(w.rows) != 120 || len(claims) < 3 {
			t.Errorf("%d messages of 60 done in %d claims, %d rows of 120", w.done(), len(claims), len(w.rows))
		}
	})
}

// TestAnOldClaimIsCompletedByLooking: enough inserts followed the claim for its tokens to leave the deduplication
// window.
func TestAnOldClaimIsCompletedByLooking(t *testing.T) {
	both := map[place]int{{1, 0}: 1, {1, 1}: 1, {1, 2}: 1}
	days := []string{"2000-02-05", "2000-03-05"}
	for _, tt := range []struct {
		name        string
		table, view []int // rows in the table and its views from unanswered inserts
		parts       uint64
		recount     []string
	}{
		{"nothing was inserted", nil, nil, 60_000, days},
		{"all of it was inserted", []int{0, 1, 2}, []int{0, 1, 2}, 60_000, days},
		{"the views did not receive it", []int{0, 1, 2}, nil, 60_000, days},
		{"the later month is missing", []int{0, 2}, nil, 60_000, days},
		{"the earlier month is missing", []int{1}, []int{1}, 60_000, days},
		{"its tokens are remembered", nil, nil, 100, []string{}},
	} {
		for _, crash := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, a crash in between: %v", tt.name, crash), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					passed()
					w := newWorld()
					w.publish(posted("a", inMonth(1, 1), inMonth(2, 2), inMonth(1, 3)))
					p := &process{world: w, name: "first"}
					sent := 0
					w.insert = func(b record.Block) error {
						if p.gone {
							return nil
						}
						sent++
						p.gone = sent == 2
						for i := b.From; i < b.To; i++ {
							r := rowAt(b.Columns, i)
							if slices.Contains(tt.table, r.Index) {
								w.table[r.place]++
								w.rows = append(w.rows, r)
							}
							if slices.Contains(tt.view, r.Index) {
								w.view[r.place]++
								w.viewed = append(w.viewed, r)
							}
						}
						return &flow.StoreError{Class: flow.ClassRetry, Err: errors.New("killed")}
					}
					_, stop := p.start(t, ingest.Config{Owner: "first"}, p.deps(), prometheus.NewRegistry())
					time.Sleep(100 * time.Millisecond)
					stop()
					w.mu.Lock()
					p.gone = true
					w.partsSince = tt.parts
					crashes := 0
					w.fault = func(_ int, op string) fault {
						if crash && crashes < 3 && (isInsert(op) || strings.HasPrefix(op, "reaggregate") || strings.HasPrefix(op, "swap to done 1")) {
							crashes++
							return []fault{crashedFirst, crashedAfter, applied}[crashes-1]
						}
						return none
					}
					w.mu.Unlock()
					w.settle(t, ingest.Config{})
					if len(tt.recount) == 0 && len(w.state.Recount) > 0 {
						t.Errorf("the days %v are in doubt", w.state.Recount)
					} else if len(tt.recount) == 0 {
						tt.recount = nil
					}
					compare(t, w, outcome{
						Table: both, View: both, Dead: map[place]string{}, Bodies: map[place]string{}, Done: 1, LastRow: 1,
						Totals: flow.Totals{Read: 3, Stored: 3}, Recount: tt.recount,
					})
				})
			})
		}
	}
}

// TestAPausedOwnerLooksBeforeItInserts: the process is paused for hours between claim and insert,
// while others insert.
func TestAPausedOwnerLooksBeforeItInserts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.publish(posted("a", at(1, 1), `"no record"`))
		stood := false
		w.before = func(op string) {
			if strings.HasPrefix(op, "dead-lettered") && !stood { // only one goroutine dead-letters
				stood = true
				time.Sleep(5 * time.Hour)
				w.mu.Lock()
				defer w.mu.Unlock()
				w.partsSince = 60_000
			}
		}
		w.run(t, ingest.Config{}, 6*time.Hour)
		if len(w.ops("visible")) < 2 || len(w.ops("reaggregate")) == 0 {
			t.Errorf("it inserted without counting first:\n%s", strings.Join(w.history, "\n"))
		}
		if diff := cmp.Diff(map[place]int{{1, 0}: 1}, w.table); diff != "" || w.state.Done != 1 {
			t.Errorf("done %d, stored (-want +got):\n%s", w.state.Done, diff)
		}
	})
}

// TestADamagedClaimHalts: a corrupt claim is never read as a different valid one.
func TestADamagedClaimHalts(t *testing.T) {
	for name, harm := range map[string]func(c *flow.Claim){
		"other rows are dropped":           func(c *flow.Claim) { c.Dropped = flow.FormatRuns([]flow.Run{{From: 0, To: 1}}) },
		"dropped records are not reported": func(c *flow.Claim) { c.Dropped = "?" },
		"it ends after its last row":       func(c *flow.Claim) { c.Pieces[0].To = 9 },
		"it ends before its last row":      func(c *flow.Claim) { c.Pieces[0].To = 2 },
		"it begins after its last row":     func(c *flow.Claim) { c.Settled = 9 },
		"it has no pieces":                 func(c *flow.Claim) { c.Pieces = nil },
		"it ends before it begins":         func(c *flow.Claim) { c.Settled, c.Pieces[0].To = 2, 1 },
		"it does not follow":               func(c *flow.Claim) { c.First++ },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.insert = func(record.Block) error { return &flow.StoreError{Class: flow.ClassRetry, Err: errors.New("away")} }
				w.publish(posted("a", at(1, 1), at(1, 2), at(1, 2), at(1, 3)))
				w.run(t, ingest.Config{}, time.Second)
				harm(w.state.Claim)
				w.insert = func(record.Block) error { return nil }
				i, stop := w.startIngester(t, ingest.Config{})
				time.Sleep(time.Minute)
				if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "halted") {
					t.Errorf("Check: got %v, want halted", err)
				}
				stop()
				expect.Not(t, len(w.table) > 0, "it stored %v", w.table)
			})
		})
	}
}

// TestRequestsOf24MonthsShareTheirParts: 24 months are the maximum of a request. A block makes one
// insert per month, however many requests it has. Such a client therefore ages the deduplication
// window by at most 24 parts a block.
func TestRequestsOf24MonthsShareTheirParts(t *testing.T) {
	const requests = 10
	synctest.Test(t, func(t *testing.T) {
		passed()
		w := newWorld()
		for n := range requests {
			var records []string
			for month := range 24 {
				records = append(records, inMonth(month, 1+n*24+month))
			}
			w.publish(posted("a", records...))
		}
		w.run(t, ingest.Config{}, time.Minute)
		// The first request may be a block of its own: it does not wait for others.
		if inserts := len(w.inserts()); inserts > 2*24 || w.done() != requests || len(w.rows) != requests*24 {
			t.Errorf("%d inserts, %d messages done, %d rows; want at most %d inserts of %d rows", inserts, w.done(), len(w.rows), 2*24, requests*24)
		}
	})
}
