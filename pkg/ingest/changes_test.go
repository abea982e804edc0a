package ingest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

func changed() flow.Message {
	return flow.Message{Topic: "flow.0.change.user.YQ", Received: time.Now(), Body: []byte("{}")}
}

// appliedTo returns the applied changes and their checkpoint.
func (w *world) appliedTo() ([]uint64, flow.LaneState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]uint64{}, w.changes...), w.applying
}

func (w *world) wantApplied(t *testing.T, done uint64, want ...uint64) {
	t.Helper()
	synctest.Wait()
	got, at := w.appliedTo()
	if diff := cmp.Diff(want, got); diff != "" || at.Done != done {
		t.Errorf("applied up to %d, want %d (-want +got):\n%s", at.Done, done, diff)
	}
}

// TestChangesDoNotWaitForTheWarehouse: ClickHouse is down or not ready, or earlier records cannot
// be stored.
func TestChangesDoNotWaitForTheWarehouse(t *testing.T) {
	refused := func(class flow.Class, unreached bool) func(*world) {
		return func(w *world) {
			w.insert = func(record.Block) error {
				return &flow.StoreError{Class: class, Unreached: unreached, Err: errInjected}
			}
		}
	}
	for name, tt := range map[string]struct {
		cfg   ingest.Config
		spoil func(*world)
	}{
		"it is down":          {ingest.Config{}, refused(flow.ClassRetry, true)},
		"its schema is wrong": {ingest.Config{}, refused(flow.ClassHalt, false)},
		"it was never up":     {ingest.Config{Ready: make(chan struct{})}, func(*world) {}},
		"the lane is halted":  {ingest.Config{}, func(w *world) { w.state = flow.LaneState{StreamID: "another", Done: 1} }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				tt.spoil(w)
				w.publish(message(rec("1")), changed(), message(rec("2")), changed())
				cfg := tt.cfg
				if cfg.Ready != nil {
					cfg.Ready = make(chan struct{}) // a channel of this synctest bubble
				}
				_, stop := w.start(t, "a", cfg)
				time.Sleep(time.Second)
				w.wantApplied(t, 4, 2, 4)
				w.publish(changed())
				time.Sleep(time.Second)
				w.wantApplied(t, 5, 2, 4, 5)
				if _, rows := w.now(); rows > 0 {
					t.Errorf("%d rows are stored: the warehouse was up", rows)
				}
				expect.NoError(t, stop())
			})
		})
	}
}

// TestChangesThatAreHeldAreNotApplied: they are applied once the hold expires.
func TestChangesThatAreHeldAreNotApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.publish(changed())
		_, stop := w.start(t, "a", ingest.Config{})
		time.Sleep(time.Second)
		w.wantApplied(t, 1, 1)
		w.mu.Lock()
		w.applying.Hold = &flow.Hold{By: "backup", Until: time.Now().Add(time.Minute).UnixMilli()}
		w.applying.Revision++
		w.mu.Unlock()
		w.publish(changed(), message(rec("1")))
		time.Sleep(50 * time.Second)
		w.wantApplied(t, 1, 1)
		w.mu.Lock()
		rows := len(w.rows)
		w.mu.Unlock()
		expect.Not(t, rows != 1, "%d rows are stored while changes are held, want 1", rows)
		time.Sleep(20 * time.Second)
		w.wantApplied(t, 2, 1, 2)
		expect.NoError(t, stop())
	})
}

// TestRecordsDoNotWaitForChanges: a halt of the changes is reported and stops no records.
func TestRecordsDoNotWaitForChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		fixed := false
		w.fault = func(_ int, op string) fault {
			if strings.HasPrefix(op, "apply") && !fixed {
				return failed
			}
			return none
		}
		w.publish(message(rec("1")), changed(), message(rec("2")))
		i, stop := w.startIngester(t, ingest.Config{})
		time.Sleep(time.Minute)
		if _, rows := w.now(); rows != 2 || w.done() != 3 {
			t.Errorf("%d rows are stored up to message %d, want 2 up to 3", rows, w.done())
		}
		w.wantApplied(t, 0, []uint64{}...)
		if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "applying changes has failed") {
			t.Errorf("Check: got %v, want only that applying changes fails", err)
		}
		w.mu.Lock()
		fixed = true
		w.mu.Unlock()
		time.Sleep(time.Minute)
		w.wantApplied(t, 2, 2)
		if err := i.Check(t.Context()); err != nil {
			t.Errorf("Check: got %v", err)
		}
		stop()
	})
}

// TestChangesOfALaneThatWasMadeAgainHalt until an operator sets the resume point.
func TestChangesOfALaneThatWasMadeAgainHalt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.publish(changed())
		w.run(t, ingest.Config{}, time.Second)
		w.identity = "FLOW_0@2"
		i, stop := w.startIngester(t, ingest.Config{})
		defer stop()
		time.Sleep(time.Second)
		if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "applying changes is halted: the stream was recreated") {
			t.Errorf("Check: got %v, want that changes are halted", err)
		}
	})
}

// TestChangesAfterAReset: changes after it have a new incarnation, also when nothing changes
// meanwhile; earlier ones are skipped.
func TestChangesAfterAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.publish(changed(), changed(), changed())
		_, stop := w.start(t, "a", ingest.Config{})
		time.Sleep(time.Second)
		w.wantApplied(t, 3, 1, 2, 3)
		w.mu.Lock()
		life := w.applying.Incarnation()
		w.applying = flow.LaneState{Incarnations: []flow.Incarnation{{ID: life + 1, First: 2}}, StreamID: w.identity, Done: 1, Revision: w.applying.Revision + 1}
		w.mu.Unlock()
		time.Sleep(5 * time.Second)
		w.wantApplied(t, 3, 1, 2, 3, 2, 3)
		expect.Not(t, w.applied != life+1, "applied in incarnation %d, want %d", w.applied, life+1)
		expect.NoError(t, stop())
	})
}

// TestALostPositionOfChangesLosesNone: they are applied again in an incarnation above all earlier
// ones, or in the lane's incarnation when it has one.
func TestALostPositionOfChangesLosesNone(t *testing.T) {
	for name, lane := range map[string]func(*world){
		"and the lane's with it":                     func(w *world) { w.state, w.rows, w.viewed = flow.LaneState{}, nil, nil },
		"and no other":                               func(*world) {},
		"a version without one has stored the lane":  func(w *world) { w.changes, w.applied = nil, 0 },
		"they were applied by a clock that is ahead": func(w *world) { w.applied += uint64(5 * 24 * time.Hour / time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.publish(message(rec("1")), changed(), changed())
				w.run(t, ingest.Config{}, time.Second)
				w.applying = flow.LaneState{}
				lane(w)
				before, life := w.applied, w.state.Incarnation()
				w.publish(changed())
				w.run(t, ingest.Config{}, time.Second)
				got, at := w.appliedTo()
				if at.Done != 4 || at.Incarnation() < before || life > 0 && life >= before && at.Incarnation() != life || got[len(got)-1] != 4 {
					t.Errorf("applied %v up to %+v, the incarnation before was %d, the lane's is %d", got, at, before, life)
				}
			})
		})
	}
}

// TestChangesAreClaimedBeforeTheyAreApplied: an entry may include a change that the checkpoint has not passed. Its
// message is claimed before, and while smaller batches are applied again, so that a lane that was set back to before it
// halts.
func TestChangesAreClaimedBeforeTheyAreApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		applies, largest := 0, uint64(0)
		w.fault = func(_ int, op string) fault { // holds the lock
			if !strings.HasPrefix(op, "apply") {
				return none
			}
			c := w.applying.Claim
			if c == nil || c.Stamp == 0 || c.Last < largest || w.applying.Check() != nil {
				t.Errorf("%s: an entry may include message %d, the checkpoint is %+v", op, largest, w.applying)
				return none
			}
			largest = c.Last
			if applies++; applies < 3 {
				return applied // without an answer
			}
			return none
		}
		w.publish(changed(), changed(), changed())
		w.run(t, ingest.Config{}, time.Minute)
		w.publish(changed())
		w.run(t, ingest.Config{}, time.Minute)
		if got, at := w.appliedTo(); at.Done != 4 || at.Claim != nil || applies < 4 {
			t.Errorf("applied %v up to %+v in %d steps", got, at, applies)
		}
	})
}

// TestTwoIngestersApplyChanges: one was paused and has lost the lane meanwhile.
func TestTwoIngestersApplyChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.publish(changed())
		_, stopA := w.start(t, "a", ingest.Config{})
		time.Sleep(time.Second)
		_, stopB := w.start(t, "b", ingest.Config{})
		time.Sleep(time.Second)
		for range 5 {
			w.publish(changed())
			time.Sleep(time.Second)
		}
		w.wantApplied(t, 6, 1, 2, 3, 4, 5, 6)
		if _, at := w.appliedTo(); at.Owner != "b" {
			t.Errorf("the changes are %q's, want b's", at.Owner)
		}
		if err := stopA(); !errors.Is(err, flow.ErrNotOwner) {
			t.Errorf("the first one ended with %v, want %v", err, flow.ErrNotOwner)
		}
		expect.NoError(t, stopB())
	})
}

// TestManyChangesAreAppliedTogether: one move of the checkpoint covers all that have arrived.
func TestManyChangesAreAppliedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.before = func(op string) {
			if strings.HasPrefix(op, "apply") {
				time.Sleep(100 * time.Millisecond)
			}
		}
		const n = 1000
		for range n {
			w.publish(changed())
		}
		_, stop := w.start(t, "a", ingest.Config{MaxRows: 10})
		time.Sleep(time.Minute)
		if got, at := w.appliedTo(); len(got) != n || at.Done != n {
			t.Errorf("%d changes are applied, up to %d", len(got), at.Done)
		}
		if steps := len(w.ops("apply ")); steps > n/10 {
			t.Errorf("%d changes were applied in %d steps", n, steps)
		}
		if err := stop(); err != nil {
			t.Error(fmt.Errorf("stop: %w", err))
		}
	})
}
