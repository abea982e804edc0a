package ingest_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

// hold holds the lane as a recount does.
func (w *world) hold(until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.position.Hold = &flow.Hold{By: "recount", Until: until.UnixMilli()}
	w.position.Revision++
}

// TestALaneThatIsHeldClaimsNothing: what is claimed when the hold comes is
// stored and recorded, and nothing else is, until the hold is over.
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
						w.mu.Unlock() // the others go on
						<-wake
						w.mu.Lock()
					}
					return nil
				}
				// One message: of several the first block may have any number.
				w.publish(message(rec("0"), rec("1"), rec("2")))
				_, stop := w.start(t, "a", ingest.Config{MaxRows: 3})
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if p, _ := w.state(); (p.Claim != nil) != tt.busy {
					t.Fatalf("the position is %+v", p)
				}
				w.hold(time.Now().Add(time.Minute))
				for i := range 50 {
					w.publish(message(rec(fmt.Sprint("later ", i))))
				}
				close(wake)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				if p, _ := w.state(); p.Claim != nil || p.Done != 1 || !p.Held(time.Now()) {
					t.Errorf("while it is held the position is %+v, want the first message done and no claim", p)
				}
				before, _ := w.state()
				time.Sleep(20 * time.Second)
				synctest.Wait()
				if p, _ := w.state(); p.Revision != before.Revision {
					t.Error("the position moves while it is held")
				}
				time.Sleep(30 * time.Second) // it was not released
				synctest.Wait()
				if p, rows := w.state(); p.Done != 51 || rows != 53 {
					t.Errorf("after the hold the position is %+v with %d rows, want all 51 messages and 53 rows", p, rows)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// state is the position and the number of rows, as they are between two steps.
func (w *world) state() (flow.Position, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.position, len(w.rows)
}
