package ingest_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

// hold holds the lane as a recount does.
func (w *world) hold(until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.Hold = &flow.Hold{By: "recount", Until: until.UnixMilli()}
	w.state.Revision++
}

// TestALaneThatIsHeldClaimsNothing: what was claimed before the hold is stored and recorded;
// nothing else is until the hold ends.
func TestALaneThatIsHeldClaimsNothing(t *testing.T) {
	for _, tt := range []struct {
		name string
		busy bool // a block is being inserted when the hold comes
	}{{"between two blocks", false}, {"in the middle of a block", true}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				wake, inserting := make(chan struct{}), tt.busy
				w.insert = func(record.Block) error {
					if inserting {
						inserting = false
						w.mu.Unlock() // the other goroutines continue
						<-wake
						w.mu.Lock()
					}
					return nil
				}
				// One message: the first block may hold any number of several.
				w.publish(message(rec("0"), rec("1"), rec("2")))
				_, stop := w.start(t, "a", ingest.Config{MaxRows: 3})
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if p, _ := w.now(); (p.Claim != nil) != tt.busy {
					t.Fatalf("the lane state is %+v", p)
				}
				w.hold(time.Now().Add(time.Minute))
				for i := range 50 {
					w.publish(message(rec(fmt.Sprint("later ", i))))
				}
				close(wake)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				if p, _ := w.now(); p.Claim != nil || p.Done != 1 || !p.Held(time.Now()) {
					t.Errorf("while it is held the lane state is %+v, want the first message done and no claim", p)
				}
				before, _ := w.now()
				time.Sleep(20 * time.Second)
				synctest.Wait()
				if p, _ := w.now(); p.Revision != before.Revision {
					t.Error("the position moves while it is held")
				}
				time.Sleep(30 * time.Second) // the hold expires without a release
				synctest.Wait()
				if p, rows := w.now(); p.Done != 51 || rows != 53 {
					t.Errorf("after the hold the lane state is %+v with %d rows, want all 51 messages and 53 rows", p, rows)
				}
				expect.NoError(t, stop())
			})
		})
	}
}

// now returns the lane state and the number of rows, read between two steps.
func (w *world) now() (flow.LaneState, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state, len(w.rows)
}

// TestAHoldWaitsForAllPieces: while a piece is in flight the block stays claimed, and nothing new
// is claimed.
func TestAHoldWaitsForAllPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, want := backlog(3)
		wake := make(chan struct{})
		w.before = func(op string) {
			if isInsert(op) && !isFirstPiece(op) {
				<-wake
			}
		}
		_, stop := w.start(t, "a", atOnce)
		time.Sleep(time.Minute)
		synctest.Wait()
		if p, rows := w.now(); p.Claim == nil || rows != 4 {
			t.Fatalf("with one of two pieces stored the lane state is %+v, with %d rows", p, rows)
		}
		w.hold(time.Now().Add(time.Minute))
		close(wake)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if p, rows := w.now(); p.Claim != nil || p.Done != 1 || rows != 8 {
			t.Errorf("while it is held the lane state is %+v with %d rows, want one message done and no claim", p, rows)
		}
		time.Sleep(2 * time.Minute)
		expect.NoError(t, stop())
		compare(t, w, want)
	})
}
