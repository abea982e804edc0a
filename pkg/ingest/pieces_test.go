package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

// backlog returns a world with a backlog of full blocks of atOnce, one per message, and the
// outcome when all are stored.
func backlog(messages int) (w *world, want outcome) {
	w = newWorld()
	rows := map[place]int{}
	for m := range messages {
		var eight []string
		for i := range 8 {
			eight = append(eight, rec(fmt.Sprintf("%d-%d", m+1, i)))
			rows[place{uint64(m + 1), i}] = 1
		}
		w.publish(message(eight...))
	}
	n := uint64(messages)
	return w, outcome{
		Table: rows, View: rows, Dead: map[place]string{}, Bodies: map[place]string{}, Done: n, LastRow: n,
		Totals: flow.Totals{Read: 8 * n, Stored: 8 * n},
	}
}

// TestPiecesOfAFullBlockAreInsertedAtOnce: both are in flight before either ends; a block that is
// not full is one insert. A block costs one write of the lane state.
func TestPiecesOfAFullBlockAreInsertedAtOnce(t *testing.T) {
	for _, pieces := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(pieces), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, want := backlog(3)
				w.publish(message(rec("last")))
				want.Table[place{4, 0}], want.Done, want.LastRow, want.Totals = 1, 4, 4, flow.Totals{Read: 25, Stored: 25}
				begun, highest, now := map[string]time.Time{}, 0, 0
				w.before = func(op string) {
					if !isInsert(op) {
						return
					}
					w.mu.Lock()
					begun[op] = time.Now()
					now++
					highest = max(highest, now)
					w.mu.Unlock()
					time.Sleep(time.Second)
					w.mu.Lock()
					now--
					w.mu.Unlock()
				}
				cfg := atOnce
				cfg.Together = pieces
				w.settle(t, cfg)
				compare(t, w, want)
				expect.Not(t, highest != pieces, "at most %d inserts were concurrent, want %d", highest, pieces)
				tokens := w.inserts()
				if last := tokens[len(tokens)-1]; !strings.HasSuffix(last, "#0") {
					t.Errorf("the last block, which was not full, was inserted as %s", last)
				}
				if want := 3*pieces + 1; len(tokens) != want || len(begun) != want {
					t.Errorf("inserted %v, want %d inserts", tokens, want)
				}
				// Taking the lane, its incarnation, four claims, and the last block as done.
				if n := len(w.ops("swap to done")) - len(w.ops("swap to done 0 claim none")); n != 5 {
					t.Errorf("%d writes of the lane state for 4 blocks:\n%s", n, strings.Join(w.ops("swap"), "\n"))
				}
			})
		})
	}
}

// TestACrashAmidPieces: when the process dies, each of two parallel pieces is stored, absent, in
// the table alone, or arrives during the next owner. That owner may insert in another way, and
// meets further faults.
func TestACrashAmidPieces(t *testing.T) {
	left := map[string]fault{"nothing is there": failed, "it is there": applied, "the views did not receive it": partly, "it comes later": later}
	for first, ofFirst := range left {
		for second, ofSecond := range left {
			for next, then := range map[string]struct {
				cfg    ingest.Config
				refuse string // suffix of the ids of rejected rows
				large  bool   // more than one row exceeds the memory limit
				old    bool   // the tokens have left the deduplication window
			}{
				"inserts at once":           {cfg: atOnce},
				"inserts one by one":        {cfg: small},
				"has larger blocks":         {cfg: ingest.Config{Together: 3}},
				"meets a refusal":           {cfg: atOnce, refuse: "-2"},
				"meets a refusal elsewhere": {cfg: atOnce, refuse: "-6"},
				"meets too little memory":   {cfg: atOnce, large: true},
				"comes late":                {cfg: atOnce, old: true},
			} {
				if (ofFirst == later || ofSecond == later) && then.old {
					continue // an insert that is late by a hundred thousand parts counts twice
				}
				t.Run(fmt.Sprintf("of the first piece %s, of the second %s; the next %s", first, second, next), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w, want := backlog(3)
						faulty := 0
						w.fault = func(_ int, op string) fault {
							if faulty == 2 || !isInsert(op) {
								return none
							}
							faulty++
							if isFirstPiece(op) {
								return ofFirst
							}
							return ofSecond
						}
						p, stop := w.start(t, "first", atOnce)
						time.Sleep(10 * time.Millisecond)
						synctest.Wait()
						w.mu.Lock()
						p.gone = true
						p.crash()
						w.mu.Unlock()
						_ = stop()
						if faulty != 2 || w.state.Claim == nil || w.state.Done != 0 {
							t.Fatalf("after %d faults the lane state is %+v", faulty, w.state)
						}
						w.mu.Lock()
						w.fault = func(int, string) fault { return none }
						if then.refuse != "" {
							// Rejects only absent rows: stored rows were accepted once.
							w.refuse = func(c *record.Columns, i int) bool {
								return strings.HasSuffix(c.ID(i), then.refuse) && w.table[place{c.StreamSeq[i], int(c.StreamIdx[i])}] == 0
							}
						}
						if then.large {
							w.insert = func(b record.Block) error {
								if b.To-b.From > 1 && w.tokens["table"][b.Token] == 0 {
									return &flow.StoreError{Class: flow.ClassRetry, Code: 241, Large: true, Err: errors.New("memory")}
								}
								return nil
							}
						}
						if then.old {
							w.partsSince, w.partsAt = 60_000, time.Now()
							clear(w.tokens["table"])
							clear(w.tokens["view"])
							want.Recount = []string{"2000-01-01"}
						}
						w.mu.Unlock()
						if ofFirst != later && ofSecond != later {
							time.Sleep(time.Minute)
						}
						w.settle(t, then.cfg)
						for at := range maps.Clone(want.Table) { // rows rejected before they were stored are dead letters
							if w.dead[at] != "" {
								delete(want.Table, at) // in the views too
								want.Dead[at], want.Bodies[at] = "refused", rec(fmt.Sprintf("%d-%d", at.Seq, at.Index))
								expect.Not(t, fmt.Sprintf("-%d", at.Index) != then.refuse, "record %v is dead", at)
							}
						}
						want.Totals.DeadLettered = uint64(len(want.Dead))
						want.Totals.Stored -= want.Totals.DeadLettered
						compare(t, w, want)
					})
				})
			}
		}
	}
}

// TestAnInsertThatLandsLateCountsOnce: an insert from before a cut, for memory or a rejected row,
// arrives at any time. It is the whole piece, or its first part after one or two cuts.
func TestAnInsertThatLandsLateCountsOnce(t *testing.T) {
	type landing struct{ unanswered, after int } // the insert without an answer, and the number of steps until it arrives
	late := map[landing]bool{}
	for name, refuse := range map[string]string{"too much memory": "", "a rejected row": "3", "the first row": "0"} {
		t.Run(name, func(t *testing.T) {
			for unanswered := 1; unanswered <= 7; unanswered++ {
				for after := range 60 {
					synctest.Test(t, func(t *testing.T) {
						w := newWorld()
						var all []string
						rows := map[place]int{}
						for i := range 16 {
							all = append(all, rec(fmt.Sprintf("%d", i)))
							rows[place{1, i}] = 1
						}
						w.publish(message(all...))
						inserts, sent := 0, func() {}
						landed := -1
						step := 0
						w.before = func(op string) {
							w.mu.Lock()
							defer w.mu.Unlock()
							if landed >= 0 {
								if step++; step == after {
									w.history = append(w.history, "it lands")
									sent()
								}
							}
						}
						w.insert = func(b record.Block) error {
							if inserts++; inserts == unanswered {
								landed = 0
								those := rowsAt(b)
								sent = func() {
									tables{&process{world: w}}.arrive("table", b.Token, those)
									tables{&process{world: w}}.arrive("view", b.Token, those)
								}
								return &flow.StoreError{Class: flow.ClassRetry, Slow: true, Err: context.DeadlineExceeded}
							}
							for i := b.From; i < b.To; i++ {
								if refuse != "" && b.Columns.ID(i) == refuse && w.tokens["table"][b.Token] == 0 {
									return &flow.StoreError{Class: flow.ClassPoison, Code: 469, Err: errors.New("refused")}
								}
							}
							if refuse == "" && b.To-b.From > 2 && w.tokens["table"][b.Token] == 0 {
								return &flow.StoreError{Class: flow.ClassRetry, Code: 241, Large: true, Err: errors.New("memory")}
							}
							return nil
						}
						w.settle(t, ingest.Config{})
						want := outcome{
							Table: rows, View: rows, Dead: map[place]string{}, Bodies: map[place]string{}, Done: 1, LastRow: 1,
							Totals: flow.Totals{Read: 16, Stored: 16},
						}
						for at := range w.dead {
							if want.Bodies[at] = rec(refuse); fmt.Sprint(at.Index) != refuse {
								t.Errorf("record %v is dead", at)
							}
							delete(rows, at)
							want.Dead[at], want.Totals.Stored, want.Totals.DeadLettered = "refused", 15, 1
						}
						compare(t, w, want)
						if strings.Contains(strings.Join(w.history, "\n"), "reaggregate") {
							late[landing{unanswered, after}] = true
						}
					})
				}
			}
		})
	}
	expect.Not(t, len(late) < 10, "an insert has landed late in %d cases only", len(late))
}

// TestATokenWithoutItsRowsHalts: a server killed during an insert may keep the token of a piece
// and none of its rows. It drops the repeated piece, and the lane halts until the token is
// removed.
func TestATokenWithoutItsRowsHalts(t *testing.T) {
	for name, second := range map[string]bool{"the first piece": false, "the second piece": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, want := backlog(1)
				killed := ""
				w.insert = func(b record.Block) error {
					if killed != "" || second != (b.From > 0) {
						return nil
					}
					killed = b.Token
					w.tokens["table"][b.Token] = b.To - b.From
					return &flow.StoreError{Class: flow.ClassRetry, Err: errors.New("killed")}
				}
				i, stop := w.startIngester(t, atOnce)
				time.Sleep(time.Minute)
				if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "halted") || !strings.Contains(err.Error(), "deduplicated but has no rows") {
					t.Errorf("Check: got %v, want halted: deduplicated but has no rows", err)
				}
				expect.Not(t, w.done() != 0, "the block was passed over")
				w.mu.Lock()
				delete(w.tokens["table"], killed) // the deduplication window of the table is reset, its view's is not
				w.mu.Unlock()
				time.Sleep(time.Minute)
				stop()
				compare(t, w, want)
			})
		})
	}
}

// TestWhatIsTooMuchAtOnceIsNotTriedAtOnceAgain: after a failure pieces are inserted serially for a
// minute.
func TestWhatIsTooMuchAtOnceIsNotTriedAtOnceAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, want := backlog(80)
		onTheirWay, together := 0, map[time.Time]int{}
		start := time.Now()
		w.before = func(op string) {
			if !isInsert(op) {
				return
			}
			w.mu.Lock()
			onTheirWay++
			together[time.Now()]++
			w.mu.Unlock()
			time.Sleep(time.Second)
		}
		w.insert = func(record.Block) error {
			if onTheirWay--; onTheirWay > 0 {
				return &flow.StoreError{Class: flow.ClassRetry, Code: 241, Large: true, Err: errors.New("memory")}
			}
			return nil
		}
		w.settle(t, atOnce)
		compare(t, w, want)
		tries := 0
		for when, n := range together {
			if n > 1 {
				tries++
				if since := when.Sub(start); since > time.Second && since < time.Minute {
					t.Errorf("it was tried again after %v", since)
				}
			}
		}
		expect.Not(t, tries < 2, "it was tried %d times, want at first and after a minute", tries)
	})
}

// inMonth is a record of the nth month of 2000 and later.
func inMonth(n, position int) string {
	return fmt.Sprintf(`{"partitionId":1,"position":%d,"timestamp":%d}`, position, time.Date(2000, time.Month(1+n), 5, 0, 0, 0, 0, time.UTC).UnixMilli())
}
