package ingest_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
)

func TestWhatIsNoticedHalts(t *testing.T) {
	tests := []struct {
		name string
		harm func(*world)
		says string
	}{
		{"the stream was recreated, nothing being stored", func(w *world) { w.identity = "FLOW_0@2" }, "the stream was recreated"},
		{"the stream was recreated in mid-block", func(w *world) {
			w.identity = "FLOW_0@2"
			w.state.Claim = &flow.Claim{First: 3, Last: 3, Hash: "0"}
		}, "the stream was recreated"},
		{"a claimed message has changed", func(w *world) {
			w.state.Claim = &flow.Claim{First: 3, Last: 3, Hash: "0"}
		}, "differ from the claimed ones"},
		{"a claimed message has other bytes of the same number", func(w *world) {
			w.state.Claim = w.claim(3, 3)
			w.messages[2].Body[8]++
		}, "differ from the claimed ones"},
		{"a message is missing in the middle", func(w *world) { w.messages[2].Seq = 4 }, "missing from the lane"},
		{"messages were purged before they were stored", func(w *world) { w.purged = 3 }, "missing from the lane"},
		{"the stream has been set back", func(w *world) { w.messages = w.messages[:1] }, "missing from the lane"},
		{"the claim does not follow", func(w *world) { w.state.Claim = &flow.Claim{First: 4, Last: 4} }, "the lane state is corrupt"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.publish(message(rec("1")), message(rec("2")))
				w.run(t, ingest.Config{}, time.Minute)
				fatal.When(t, w.done() != 2, "the first two messages are not done")
				w.publish(message(rec("3")), message(rec("4")))
				tt.harm(w)
				i, stop := w.startIngester(t, ingest.Config{})
				time.Sleep(time.Minute)
				if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "halted") {
					t.Errorf("Check: got %v, want halted: %s", err, tt.says)
				}
				stop()
				if got := w.done(); got != 2 || len(w.table) != 2 {
					t.Errorf("done %d with %d rows: the lane continued", got, len(w.table))
				}
			})
		})
	}
}

// TestAnEarlierStateOfNATSHalts: stream and lane state are restored to an earlier time, the table
// is not. Nothing may be stored under sequences the table holds of the same incarnation until an
// operator resets the lane.
func TestAnEarlierStateOfNATSHalts(t *testing.T) {
	tests := []struct {
		name    string
		running bool // the ingester runs throughout
		restore func(w *world, backup flow.LaneState)
	}{
		{"restored from a backup while no ingester worked", false, func(w *world, backup flow.LaneState) {
			w.messages, w.state = w.messages[:2:2], backup
		}},
		{"restored under an ingester that runs", true, func(w *world, backup flow.LaneState) {
			w.messages, w.state = w.messages[:2:2], backup
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.publish(message(rec("1")), message(rec("2")))
				i, stop := w.startIngester(t, ingest.Config{})
				time.Sleep(time.Minute)
				w.mu.Lock()
				backup := w.state
				w.mu.Unlock()
				w.publish(message(rec("3")), message(rec("4")))
				time.Sleep(time.Minute)
				if !tt.running {
					stop()
				}
				w.mu.Lock()
				backup.Revision = w.state.Revision + 1 // the restore writes it again
				tt.restore(w, backup)
				w.mu.Unlock()
				if !tt.running {
					i, stop = w.startIngester(t, ingest.Config{})
				}
				w.publish(message(rec("5")), message(rec("6")), message(rec("7")))
				time.Sleep(time.Minute)
				if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "messages up to 4") || !strings.Contains(err.Error(), "sluice lanes reset") {
					t.Errorf("Check: got %v, want that the table has more, and the remedy", err)
				}
				expect.Not(t, len(w.table) != 4, "%d rows: the lane continued", len(w.table))

				// The operator names the last message that is unchanged.
				w.mu.Lock()
				before := w.state.Incarnation()
				owner := w.state.Owner
				w.state = w.state.Behind(2, 1, before+1)
				w.state.Owner, w.state.Revision = owner, w.state.Revision+1
				w.mu.Unlock()
				time.Sleep(time.Minute)
				expect.NoError(t, stop())
				w.mu.Lock()
				defer w.mu.Unlock()
				if got := w.state; got.Done != uint64(len(w.messages)) || got.Incarnation() <= before || len(w.rows) != 7 {
					t.Errorf("after the reset the lane state is %+v, want all %d done in another incarnation than %d, and 7 rows of %d", got, len(w.messages), before, len(w.rows))
				}
			})
		})
	}
}

// TestALaneThatIsMadeNewIsAnotherLife: its messages reuse sequences that the table holds, and are
// all stored.
func TestALaneThatIsMadeNewIsAnotherLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.publish(message(rec("1")), message(rec("2")))
		w.run(t, ingest.Config{}, time.Minute)
		before := w.state.Incarnation()
		const ahead = 1 << 40 // a clock that is ahead
		w.messages, w.state, w.identity, w.created = nil, flow.LaneState{}, "FLOW_0@2", int64(before+ahead)
		w.publish(message(rec("3")))
		w.rows[0].incarnation = before + ahead - 1
		w.run(t, ingest.Config{}, time.Minute)
		if w.state.Done != 1 || w.state.Incarnation() <= before+ahead || len(w.rows) != 3 {
			t.Errorf("the lane state is %+v with %d rows, want message 1 done in an incarnation after all others, and 3 rows", w.state, len(w.rows))
		}
	})
}
