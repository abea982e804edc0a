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

// unnamed is a request of one record without a deduplication key.
func unnamed(n int) flow.Message {
	m := asked(fmt.Sprint("request-", n), 0, 1)
	m.Body = fmt.Appendf(nil, `[{"key":%d}]`, n)
	return m
}

// send publishes requests of one record each, some seconds apart.
func (w *world) send(requests ...int) {
	for _, n := range requests {
		knew := uint64(len(w.messages))
		w.publishEntry(entryOf(seconds(int(knew)), knew, unnamed(n)))
	}
}

// reset is the operator's reset: messages up to last are unchanged.
func (w *world) reset(last int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := max(w.state.Incarnation(), w.applying.Incarnation()) + 1
	for _, s := range []*flow.LaneState{&w.state, &w.applying} {
		next := s.Behind(uint64(last), w.purged+1, id)
		next.Owner, next.StreamID, next.Revision = s.Owner, w.identity, s.Revision+1
		*s = next
	}
	w.applying.Reset = false
}

// stored counts the rows of each request.
func (w *world) stored() map[int64]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	rows := map[int64]int{}
	for _, r := range w.rows {
		rows[r.Key]++
	}
	return rows
}

// TestAResetStoresEachRecordOnce: lanes or lane states are older or newer than the table, and an
// operator names the last unchanged message. Clients resend what is missing. No record has a
// deduplication key.
func TestAResetStoresEachRecordOnce(t *testing.T) {
	tests := []struct {
		name  string
		harm  func(t *testing.T, w *world, backup flow.LaneState) // applied when 1 to 4 are stored, and the backup is of 2
		says  string                                              // the reason of the halt
		last  int                                                 // the last unchanged message
		sends []int                                               // afterwards
		want  []int
	}{
		{"NATS was set back, and the lane reaches beyond its checkpoint", func(_ *testing.T, w *world, backup flow.LaneState) {
			w.messages, w.state = w.messages[:3:3], backup
			w.send(5)
		}, "never read beyond 2", 3, []int{3, 4, 5, 6}, []int{1, 2, 3, 4, 4, 5, 6}}, // the log lost request 4, and only the log deduplicates requests
		{"the lane alone was set back", func(_ *testing.T, w *world, _ flow.LaneState) {
			w.messages = w.messages[:3:3]
		}, "missing from the lane", 3, []int{2, 3, 5}, []int{1, 2, 3, 4, 5}},
		{"the lane states alone were set back", func(_ *testing.T, w *world, backup flow.LaneState) {
			w.state = backup
		}, "never read beyond 2", 4, []int{1, 3, 5}, []int{1, 2, 3, 4, 5}},
		{"the lane states were lost", func(_ *testing.T, w *world, _ flow.LaneState) {
			w.state = flow.LaneState{}
		}, "the lane state is gone", 4, []int{1, 4, 5}, []int{1, 2, 3, 4, 5}},
		{"the lane states were lost, and the oldest message was purged", func(_ *testing.T, w *world, _ flow.LaneState) {
			w.state, w.purged = flow.LaneState{}, 1
		}, "missing from the lane", 4, []int{2, 4, 5}, []int{1, 2, 3, 4, 5}},
		{"the stream was recreated", func(_ *testing.T, w *world, _ flow.LaneState) {
			w.identity, w.messages = "FLOW_0@2", nil
			w.send(5)
		}, "the stream was recreated", 0, []int{6}, []int{1, 2, 3, 4, 5, 6}},
		{"the lane states were set back behind a reset", func(t *testing.T, w *world, backup flow.LaneState) {
			w.reset(4)
			w.send(5, 6)
			w.run(t, ingest.Config{}, time.Minute)
			backup.Revision = w.state.Revision
			w.state = backup
		}, "which the lane state does not list", 6, []int{4, 6, 7}, []int{1, 2, 3, 4, 5, 6, 7}},
		{"the lane states were lost behind a reset", func(t *testing.T, w *world, _ flow.LaneState) {
			w.reset(4)
			w.send(5, 6)
			w.run(t, ingest.Config{}, time.Minute)
			w.state = flow.LaneState{}
		}, "the lane state is gone", 6, []int{4, 6, 7}, []int{1, 2, 3, 4, 5, 6, 7}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.created = time.Now().UnixMilli()
				w.send(1, 2)
				w.run(t, ingest.Config{}, time.Minute)
				backup := w.state
				w.send(3, 4)
				w.run(t, ingest.Config{}, time.Minute)
				backup.Revision = w.state.Revision
				tt.harm(t, w, backup)

				i, stop := w.startIngester(t, ingest.Config{})
				time.Sleep(time.Minute)
				before := len(w.rows)
				if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "halted") || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("Check: got %v, want halted: %s", err, tt.says)
				}
				expect.Not(t, len(w.rows) != before, "the lane continued")
				w.reset(tt.last)
				w.send(tt.sends...)
				time.Sleep(time.Minute)
				if err := i.Check(t.Context()); err != nil {
					t.Errorf("after the reset Check: got %v", err)
				}
				expect.NoError(t, stop())
				want := map[int64]int{}
				for _, n := range tt.want {
					want[int64(n)]++
				}
				expect.Equal(t, "stored", want, w.stored())
				if n := uint64(len(w.messages)); w.state.Done != n || w.state.Reset {
					t.Errorf("the lane is at %+v of %d messages", w.state, n)
				}
				ids := map[uint64]bool{}
				for _, in := range w.state.Incarnations {
					ids[in.ID] = true
				}
				for _, r := range w.rows {
					if !ids[r.incarnation] {
						t.Errorf("message %d has a row of incarnation %d, of which the state lists %v", r.Seq, r.incarnation, w.state.Incarnations)
					}
				}
				if len(w.broken) > 0 {
					t.Error(strings.Join(slices.Compact(w.broken), "\n"))
				}
			})
		})
	}
}

// TestARestoredMessageKeepsItsToken: a claim of unchanged messages is completed under its tokens,
// whatever happened to the lane behind them.
func TestARestoredMessageKeepsItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.created = time.Now().UnixMilli()
		w.send(1, 2)
		w.run(t, ingest.Config{}, time.Minute)
		w.send(3, 4)
		w.dieInserting(t, crashedAfter)
		if w.state.Claim == nil || len(w.rows) != 4 {
			t.Fatalf("no claim is open: %+v with %d rows", w.state, len(w.rows))
		}
		w.reset(4)
		w.send(5)
		w.run(t, ingest.Config{}, time.Minute)
		tokens := w.inserts()
		if n := len(tokens); n < 2 || tokens[n-3] != tokens[n-2] || w.state.Done != 5 {
			t.Errorf("done %d under the tokens %v, want the second block twice under one", w.state.Done, tokens)
		}
		expect.Equal(t, "stored", map[int64]int{1: 1, 2: 1, 3: 1, 4: 1, 5: 1}, w.stored())
	})
}

// TestAResetFindsRowsThatTheIndexLacks: an insert reached flow.records alone, its claim is lost, and the records are sent
// again in a later message. They would count as new.
func TestAResetFindsRowsThatTheIndexLacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.created = time.Now().UnixMilli()
		w.publish(posted("a", at(1, 1)))
		w.run(t, ingest.Config{}, time.Minute)
		backup := w.state
		w.publish(posted("a", at(1, 2), at(1, 3)))
		w.run(t, ingest.Config{}, time.Minute)
		w.viewed = w.viewed[:1:1]
		backup.Revision = w.state.Revision
		w.state, w.messages = backup, w.messages[:1:1]
		w.reset(1)

		w.publish(posted("a", at(1, 2)), posted("a", at(1, 3), at(1, 4)))
		i, stop := w.startIngester(t, ingest.Config{})
		time.Sleep(time.Minute)
		if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "flow.sources is missing rows") || len(w.rows) != 3 {
			t.Errorf("%d rows, Check: got %v, want halted: flow.sources is missing rows", len(w.rows), err)
		}
		w.mu.Lock()
		w.viewed = slices.Clone(w.rows) // as docs/runbooks/lanes.md says
		w.mu.Unlock()
		time.Sleep(time.Minute)
		expect.NoError(t, stop())
		if len(w.rows) != 4 || w.state.Done != 3 {
			t.Errorf("%d rows, done %d, want each of four records once", len(w.rows), w.state.Done)
		}
	})
}

// TestAResetWaitsForRunningInserts: a reset drops a claim, and its insert is still running in ClickHouse.
func TestAResetWaitsForRunningInserts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.publish(posted("a", at(1, 1)))
		w.run(t, ingest.Config{}, time.Minute)
		w.publish(posted("a", at(1, 2), at(1, 3)))
		w.dieInserting(t, crashedFirst)
		token, incarnation := w.state.Claim.Token(0, w.state.Incarnation(), 0), w.state.Incarnation()
		w.state.Claim, w.inserting = nil, true
		w.publish(posted("a", at(1, 4))) // the next claim has it too, and another token
		w.reset(3)

		i, stop := w.startIngester(t, ingest.Config{})
		time.Sleep(time.Minute)
		if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "still running in ClickHouse") || len(w.rows) != 1 {
			t.Errorf("%d rows, Check: got %v, want waiting for the insert", len(w.rows), err)
		}
		w.land(token, incarnation, place{2, 0}, place{2, 1})
		w.mu.Lock()
		w.inserting = false
		w.mu.Unlock()
		time.Sleep(time.Minute)
		expect.NoError(t, stop())
		if len(w.rows) != 4 || w.state.Done != 3 {
			t.Errorf("%d rows, done %d, want each of four records once", len(w.rows), w.state.Done)
		}
	})
}

// TestAResetKeepsTheWindowBeforeIt: the lane is set back further than its checkpoint requires, and
// a request of the window at that time is repeated.
func TestAResetKeepsTheWindowBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.created = time.Now().UnixMilli()
		var all []int
		for n := 1; n <= 60; n++ {
			w.publishEntry(entryOf(seconds(29*n), uint64(n-1), unnamed(n)))
			all = append(all, n)
		}
		w.run(t, ingest.Config{}, time.Minute)
		fatal.When(t, w.state.DedupFrom < 30, "the checkpoint counts on messages from %d on", w.state.DedupFrom)
		w.messages = w.messages[:30:30]
		w.reset(30)
		w.publishEntry(entryOf(seconds(29*31), 30, unnamed(20)))
		w.publishEntry(entryOf(seconds(29*32), 21, unnamed(61))) // its api was slow, yet it is not void
		w.run(t, ingest.Config{}, time.Minute)
		want := map[int64]int{61: 1}
		for _, n := range all {
			want[int64(n)] = 1
		}
		if diff := cmp.Diff(want, w.stored()); diff != "" || w.state.Done != 32 {
			t.Errorf("done %d, stored (-want +got):\n%s", w.state.Done, diff)
		}
	})
}

// TestSettledPiecesThatAreLostHaltTheLane: a warehouse was restored to a time with all rows up to
// the checkpoint and without pieces of the open claim.
func TestSettledPiecesThatAreLostHaltTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		passed()
		w := newWorld()
		w.publish(posted("a", inMonth(1, 1), inMonth(2, 2), inMonth(1, 3)))
		blocked := true
		w.insert = func(b record.Block) error {
			if blocked && rowAt(b.Columns, b.From).Index == 1 { // of the later month
				return &flow.StoreError{Class: flow.ClassRetry, Code: 202, Err: errors.New("busy")}
			}
			return nil
		}
		i, stop := w.startIngester(t, ingest.Config{Together: 1})
		time.Sleep(time.Minute)
		w.mu.Lock()
		if len(w.rows) != 2 || w.state.Claim == nil || w.state.Claim.Settled == 0 {
			t.Fatalf("%d rows, claim %+v, want the earlier month settled", len(w.rows), w.state.Claim)
		}
		w.rows, w.viewed, w.table, blocked = nil, nil, map[place]int{}, false
		w.tokens = map[string]map[string]int{"table": {}, "view": {}}
		w.mu.Unlock()
		time.Sleep(2 * time.Minute)
		if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "sluice lanes reset --lane 0 --last 0") {
			t.Errorf("Check: got %v, want halted with the command", err)
		}
		w.reset(0)
		time.Sleep(time.Minute)
		expect.NoError(t, stop())
		expect.Equal(t, "stored", map[place]int{{1, 0}: 1, {1, 1}: 1, {1, 2}: 1}, w.table)
	})
}
