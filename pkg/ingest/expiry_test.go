package ingest_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

// day is the UTC day of a time.
func day(at time.Time) string { return at.UTC().Format(time.DateOnly) }

// TestNoClockOfAnAPIExpiresARow: retention counts from ClickHouse's clock just before the
// claim, or from the lane's time of the block's last message when that is later.
func TestNoClockOfAnAPIExpiresARow(t *testing.T) {
	for name, tt := range map[string]struct{ received, stored, skew time.Duration }{
		"an api whose clock is two years behind": {received: -2 * 365 * 24 * time.Hour},
		"an api whose clock is two years ahead":  {received: 2 * 365 * 24 * time.Hour},
		"a lane whose clock is behind":           {stored: -500 * 24 * time.Hour},
		"a lane whose clock is ahead":            {stored: 3 * time.Hour},
		"ClickHouse's clock is behind":           {skew: -500 * 24 * time.Hour},
		"ClickHouse's clock is ahead":            {skew: 5 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				passed()
				w := newWorld()
				w.skew = tt.skew
				m := message(rec("1"))
				m.Received = time.Now().Add(tt.received)
				w.publishEntry(flow.Entry{Topic: m.Topic, Body: m.Body, Messages: []flow.Message{m}, Stored: time.Now().Add(tt.stored)})
				begun := time.Now()
				w.run(t, ingest.Config{}, time.Minute)
				want := begun.Add(max(tt.skew, tt.stored))
				fatal.When(t, len(w.rows) != 1 || time.UnixMilli(w.rows[0].storedAt).Sub(want).Abs() > 2*time.Second, "stored %+v, want a row of %v", w.rows, want)
				expect.Equal(t, "stored days", []flow.StoredDay{{Day: day(want), Rows: 1, Last: 1}}, w.state.StoredDays)
			})
		})
	}
}

// storedOn counts the rows of the table by the day they were stored on.
func (w *world) storedOn() map[string]uint64 {
	days := map[string]uint64{}
	for _, r := range w.rows {
		days[flow.UTCDay(r.storedAt)]++
	}
	return days
}

// countedOn is storedOn by the lane state's counts.
func (w *world) countedOn(after string) map[string]uint64 {
	days := map[string]uint64{}
	for _, d := range w.state.StoredDays {
		if d.Day > after {
			days[d.Day] += d.Rows
		}
	}
	return days
}

// TestAnOutageIsNoTimeThatRowsAreKept: ClickHouse is down for three days with a claim open, and
// retention is two. Afterwards all rows have their whole retention, also if one of two pieces was
// stored before or a delayed insert lands.
func TestAnOutageIsNoTimeThatRowsAreKept(t *testing.T) {
	for name, tt := range map[string]struct {
		stored string // rows of the first month are stored before the outage: "" no, "known" yes and recorded, "unanswered" yes but unrecorded
		lands  bool   // the last insert of the outage arrives after the renewal
	}{
		"nothing was stored":                         {},
		"the first month was stored":                 {stored: "known"},
		"the first month was stored, no answer":      {stored: "unanswered"},
		"an insert lands when the claim was renewed": {lands: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				passed()
				time.Sleep(12 * time.Hour) // far from midnight
				w := newWorld()
				begun := time.Now()
				w.publish(posted("a", inMonth(1, 1), inMonth(2, 2), inMonth(1, 3)))
				away, sent := true, []record.Block(nil)
				w.insert = func(b record.Block) error {
					first := time.UnixMilli(b.Columns.TS[b.From]).UTC().Month() == time.February
					switch {
					case !away && tt.lands && len(sent) > 0:
						for _, late := range sent { // the insert as it was sent
							w.arrive("table", late)
							w.arrive("view", late)
						}
						sent = nil
					case !away:
					case tt.stored == "known" && first:
						return nil
					case tt.stored == "unanswered" && first:
						w.arrive("table", b)
						w.arrive("view", b)
						fallthrough
					default:
						if tt.lands && len(sent) < 2 {
							sent = append(sent, b)
						}
						return &flow.StoreError{Class: flow.ClassRetry, Err: errors.New("away")}
					}
					return nil
				}
				_, stop := w.start(t, "a", ingest.Config{RetryMax: 5 * time.Minute})
				time.Sleep(3 * 24 * time.Hour)
				w.mu.Lock()
				away = false
				if claim := w.state.Claim; claim == nil || time.Since(time.UnixMilli(claim.StoredAt)) > 2*time.Hour {
					t.Errorf("after three days the claim is %+v", claim)
				}
				w.mu.Unlock()
				time.Sleep(10 * time.Minute)
				fatal.If(t, stop())
				want := map[string]uint64{day(time.Now()): 3}
				switch {
				case tt.stored != "":
					want = map[string]uint64{day(begun): 2, day(time.Now()): 1}
				case tt.lands:
					want = map[string]uint64{day(begun): 3}
				}
				expect.Equal(t, "stored", want, w.storedOn())
				expect.Equal(t, "totals by stored day", want, w.countedOn(""))
				if w.state.Done != 1 || w.state.Claim != nil || len(w.broken) > 0 {
					t.Errorf("%+v, broken: %v", w.state, w.broken)
				}
				if today := day(time.Now()); !slices.ContainsFunc(w.state.Recount, func(d flow.Doubt) bool { return d.Stored == today }) {
					t.Errorf("in doubt: %v, want what was stored on %s", w.state.Recount, today)
				}
			})
		})
	}
}

// TestEveryStepOfARenewalMayFail: a claim, open for two hours with one piece or none stored, is
// renewed and stored despite a fault in any step.
func TestEveryStepOfARenewalMayFail(t *testing.T) {
	for _, stored := range []bool{false, true} {
		t.Run(fmt.Sprintf("a piece is stored: %v", stored), func(t *testing.T) {
			t.Parallel()
			everyStep(t, 10, func(t *testing.T, fails func(int, string) fault) (steps int) {
				synctest.Test(t, func(t *testing.T) {
					passed()
					time.Sleep(23 * time.Hour)
					w := newWorld()
					w.publish(posted("a", inMonth(1, 1), inMonth(2, 2), inMonth(1, 3)))
					w.insert = func(b record.Block) error {
						if stored && time.UnixMilli(b.Columns.TS[b.From]).UTC().Month() == time.February {
							return nil
						}
						return &flow.StoreError{Class: flow.ClassRetry, Err: errors.New("away")}
					}
					w.run(t, ingest.Config{}, time.Minute)
					time.Sleep(2 * time.Hour) // past midnight
					w.mu.Lock()
					begun := w.step
					w.insert = func(record.Block) error { return nil }
					w.fault = func(step int, op string) fault { return fails(step-begun, op) }
					w.mu.Unlock()
					w.settle(t, ingest.Config{})
					rows := map[place]int{{1, 0}: 1, {1, 1}: 1, {1, 2}: 1}
					compare(t, w, outcome{
						Table: rows, View: rows, Dead: map[place]string{}, Bodies: map[place]string{}, Done: 1, LastRow: 1,
						Totals: flow.Totals{Read: 3, Stored: 3},
					})
					if diff := cmp.Diff(w.storedOn(), w.countedOn("")); diff != "" {
						t.Errorf("totals by stored day (-rows +totals):\n%s\nsteps:\n%s", diff, strings.Join(w.history, "\n"))
					}
					if days := w.storedOn(); len(days) != map[bool]int{false: 1, true: 2}[stored] {
						t.Errorf("stored on %v", days)
					}
					steps = w.step - begun
				})
				return steps
			})
		})
	}
}

// TestAClaimThatIsStoredIsNotRenewed: its owner is killed between insert and compare-and-swap, and
// no process runs for hours.
func TestAClaimThatIsStoredIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passed()
		w, begun := killedBehindItsInsert(t)
		time.Sleep(30 * time.Hour)
		w.run(t, ingest.Config{}, time.Minute)
		if diff := cmp.Diff([]flow.StoredDay{{Day: day(begun), Rows: 2, Last: 1}}, w.state.StoredDays); diff != "" || len(w.state.Recount) > 0 || w.state.Done != 1 {
			t.Errorf("done %d, in doubt %v, stored days (-want +got):\n%s", w.state.Done, w.state.Recount, diff)
		}
	})
}

// killedBehindItsInsert returns a world whose first claim is stored and open.
func killedBehindItsInsert(t *testing.T) (w *world, begun time.Time) {
	w, begun = newWorld(), time.Now()
	w.publish(message(rec("1"), rec("2")))
	w.fault = func(_ int, op string) fault {
		if strings.HasPrefix(op, "insert") {
			return crashedAfter
		}
		return none
	}
	p, stop := w.start(t, "first", ingest.Config{})
	time.Sleep(time.Minute)
	_ = stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !p.gone || w.state.Claim == nil || len(w.table) != 2 {
		t.Fatalf("%d rows, claim %v", len(w.table), w.state.Claim)
	}
	w.fault = func(int, string) fault { return none }
	return w, begun
}

// TestRecoveryDoesNotMissWhatHasExpired: an owner is killed between insert and compare-and-swap.
// Retention passes, and a merge removes the rows before the next owner starts. This holds with and
// without the tokens, and if killed again at any step.
func TestRecoveryDoesNotMissWhatHasExpired(t *testing.T) {
	for _, known := range []bool{true, false} {
		for crash := range 12 {
			t.Run(fmt.Sprintf("tokens are known: %v, a crash at step %d", known, crash), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					passed()
					w, begun := killedBehindItsInsert(t)
					time.Sleep(4 * 24 * time.Hour)
					w.expire(day(begun))
					if !known {
						clear(w.tokens["table"])
						clear(w.tokens["view"])
						w.view, w.viewed = map[place]int{}, nil
					}
					w.mu.Lock()
					from := w.step
					w.fault = func(step int, _ string) fault {
						if step == from+crash {
							return crashedAfter
						}
						return none
					}
					w.mu.Unlock()
					w.settle(t, ingest.Config{})
					if w.state.Done != 1 || w.state.Claim != nil || w.state.Totals != (flow.Totals{Read: 2, Stored: 2}) || len(w.broken) > 0 {
						t.Fatalf("%+v, broken: %v", w.state, w.broken)
					}
					want := map[string]uint64{}
					if !known { // without the tokens they are stored again as new records
						want = map[string]uint64{day(time.Now()): 2}
					}
					if diff := cmp.Diff(want, w.countedOn(w.line)); diff != "" || len(w.table) != 2*len(want) {
						t.Errorf("%d rows, totals of what is kept (-want +got):\n%s", len(w.table), diff)
					}
				})
			})
		}
	}
}

// TestMissingIsNotExpired: a token whose unexpired rows are gone is damage, however old the claim
// is.
func TestMissingIsNotExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passed()
		w, begun := killedBehindItsInsert(t)
		time.Sleep(4 * 24 * time.Hour)
		w.expire(day(begun))
		w.line = day(begun.AddDate(0, 0, -1)) // retention has not passed
		i, stop := w.startIngester(t, ingest.Config{})
		time.Sleep(time.Minute)
		if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "has no rows") {
			t.Errorf("got %v, want that the lane is halted", err)
		}
		_ = stop()
	})
}

// TestARepeatOfWhatHasExpiredIsNew: a record is deduplicated for as long as it is kept.
func TestARepeatOfWhatHasExpiredIsNew(t *testing.T) {
	for name, running := range map[string]bool{"to the ingester that had stored it": true, "to another one": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				passed()
				w := newWorld()
				begun := time.Now()
				w.publish(posted("a", at(1, 1), at(1, 2)))
				_, stop := w.start(t, "a", ingest.Config{})
				wait := func(d time.Duration) {
					time.Sleep(d)
					if !running {
						_ = stop()
						_, stop = w.start(t, fmt.Sprint(time.Now().UnixNano()), ingest.Config{})
					}
				}
				wait(24 * time.Hour)
				w.publish(posted("a", at(1, 2))) // kept: deduplicated
				wait(4 * 24 * time.Hour)
				w.expire(day(begun))
				w.publish(posted("a", at(1, 1))) // expired: new
				wait(time.Hour)
				w.publish(posted("a", at(1, 1))) // deduplicated again
				wait(time.Minute)
				_ = stop()
				if want := (flow.Totals{Read: 5, Stored: 3, Deduplicated: 2}); w.state.Totals != want || w.state.Done != 4 {
					t.Errorf("done %d, %+v, want %+v", w.state.Done, w.state.Totals, want)
				}
				expect.Equal(t, "rows", map[place]int{{3, 0}: 1}, w.table)
			})
		})
	}
}

// TestAnIdleLaneWhoseRowsHaveExpiredLosesNothing: a lane idle for longer than the retention is not
// reported as missing records.
func TestAnIdleLaneWhoseRowsHaveExpiredLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passed()
		w := newWorld()
		w.publish(message(rec("1")), message(rec("2")))
		w.run(t, small, time.Minute)
		w.expire(day(time.Now()))
		for line, want := range map[string]float64{w.line: 0, "": 2} {
			w.line = line
			reg := newRegistry()
			_, stop := (&process{world: w, name: "b"}).startWith(t, small, reg)
			time.Sleep(time.Second)
			if got := sample(t, reg, `sluice_ingest_table_missing_messages{lane="0"}`); got != want {
				t.Errorf("line %q: %v messages are reported missing, want %v", line, got, want)
			}
			_ = stop()
		}
	})
}
