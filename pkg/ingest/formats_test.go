package ingest_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"sluice/pkg/flow"
	"sluice/pkg/formattest"
	"sluice/pkg/ingest"
)

// leftBehind is what an ingester that was killed in mid-insert leaves: the messages
// of its lane, and the position with its claim.
type leftBehind struct {
	Messages [][]string // each a request of records of source a
	Position flow.Position
}

// finished is what the next ingester makes of it.
type finished struct {
	Tokens map[string]int // rows inserted under each
	Done   uint64
	Totals flow.Totals
}

// TestFormatsOfEveryVersion: what an ingester of an earlier version has claimed is
// stored by one of this version, under the same token, with what was dropped of it:
// also when the earlier one has inserted it already and died before it could say so.
func TestFormatsOfEveryVersion(t *testing.T) {
	written := leftBehind{Messages: [][]string{
		{at(1, 1), at(1, 2), rec("no-position")},
		{at(1, 2), at(1, 3), rec("no-position"), `"no record"`}, // two are repeated, one is dead
	}}
	// A block has what has arrived: which of the two messages that is, is not promised.
	for tries := 0; tries < 100 && (written.Position.Claim == nil || written.Position.Claim.Last < 2); tries++ {
		synctest.Test(t, func(t *testing.T) {
			w := written.world()
			w.faults = func(_ int, op string) fault {
				if strings.HasPrefix(op, "insert") {
					return crashedFirst
				}
				return none
			}
			_, stop := w.start(t, "before", ingest.Config{})
			time.Sleep(time.Minute)
			_ = stop() // it has crashed
			written.Position = w.position
			written.Position.Revision = 0 // it is of the bucket
		})
	}
	if written.Position.Claim == nil || written.Position.Claim.Dropped == "" {
		t.Fatalf("the position has no claim that drops something: %+v", written.Position)
	}
	formattest.Check(t, written, func(t *testing.T, l leftBehind) (f finished) {
		for _, inserted := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				w := l.world()
				w.position = l.Position
				if inserted { // by an ingester of this version that crashes right after: as the earlier one would
					w.faults = func(_ int, op string) fault {
						if strings.HasPrefix(op, "insert") {
							return crashedAfter
						}
						return none
					}
					_, stop := w.start(t, "between", ingest.Config{})
					time.Sleep(time.Minute)
					_ = stop()
					w.faults = func(int, string) fault { return none }
				}
				w.settle(t, ingest.Config{})
				got := finished{w.tokens["table"], w.position.Done, w.position.Totals}
				if !inserted {
					f = got
				} else if fmt.Sprint(got) != fmt.Sprint(f) {
					t.Errorf("inserted before: %+v, else %+v", got, f)
				}
				if len(w.broken) > 0 {
					t.Error(w.broken)
				}
			})
		}
		return f
	}, cmpopts.EquateEmpty())
}

// world has the messages, and nothing that was done with them.
func (l leftBehind) world() *world {
	w := newWorld()
	for i, records := range l.Messages {
		m := posted("a", records...)
		m.Received, m.ID, m.Hash = time.UnixMilli(946_684_800_000), fmt.Sprint("request-", i), "00"
		w.publish(m)
	}
	return w
}
