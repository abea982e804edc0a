package ingest_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/ingest/dedup"
)

// begun is the start of the lanes of these tests.
var begun = time.Date(2025, 11, 21, 5, 0, 0, 0, time.UTC)

// asked is a request of the numbered records from one to another, without deduplication keys.
func asked(id string, from, to int) flow.Message {
	var list []string
	for i := from; i < to; i++ {
		list = append(list, fmt.Sprintf(`{"key":%d}`, i))
	}
	return flow.Message{
		Topic: "flow.0.record", ID: id, Hash: "hash of " + id, From: from, Records: to - from,
		Source: "engine", Received: time.Now(), Body: []byte("[" + strings.Join(list, ",") + "]"),
	}
}

// entryOf is an entry that a lane stores this long after begun, from an api that had read the lane
// up to a message.
func entryOf(after time.Duration, knew uint64, messages ...flow.Message) flow.Entry {
	return flow.Entry{
		Topic: "flow.0.record", Stored: begun.Add(after), LogEnd: knew, Patience: 5 * time.Minute,
		Table: []byte(fmt.Sprint(knew, messages)), Messages: messages,
	}
}

// finish runs one ingester until all is stored, and passes its metrics to look before it stops.
func finish(t *testing.T, w *world, cfg ingest.Config, look ...func(*prometheus.Registry)) {
	t.Helper()
	reg := newRegistry()
	_, stop := (&process{world: w, name: cfg.Owner}).startWith(t, cfg, reg)
	for range 10_000 {
		time.Sleep(100 * time.Millisecond)
		w.mu.Lock()
		done := w.state.Done == uint64(len(w.messages)) && w.state.Claim == nil
		w.mu.Unlock()
		if done {
			break
		}
	}
	for _, f := range look {
		f(reg)
	}
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	expect.Not(t, w.state.Done != uint64(len(w.messages)), "the lane is at %d of %d", w.state.Done, len(w.messages))
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// TestARequestIsStoredOnce: its records have no deduplication key. A record is listed at its first
// occurrence.
func TestARequestIsStoredOnce(t *testing.T) {
	other := func(m flow.Message, hash string) flow.Message { m.Hash = hash; return m }
	of := func(m flow.Message, source, subject string) flow.Message {
		m.Source, m.Subject = source, subject
		return m
	}
	for name, tt := range map[string]struct {
		entries []flow.Entry
		want    []place
		void    uint64
	}{
		"in one entry": {[]flow.Entry{entryOf(0, 0, asked("a", 0, 2), asked("b", 0, 1), asked("a", 0, 2))}, []place{{1, 0}, {1, 1}, {1, 2}}, 0},
		"in the next entry": {[]flow.Entry{entryOf(0, 0, asked("a", 0, 2)), entryOf(0, 1, asked("a", 0, 2), asked("b", 0, 1))},
			[]place{{1, 0}, {1, 1}, {2, 2}}, 0},
		"cut in another way": {[]flow.Entry{entryOf(0, 0, asked("a", 0, 3), asked("a", 3, 4)), entryOf(0, 1, asked("a", 0, 1), asked("a", 1, 6))},
			[]place{{1, 0}, {1, 1}, {1, 2}, {1, 3}, {2, 4}, {2, 5}}, 0},
		"completed by a retry": {[]flow.Entry{entryOf(0, 0, asked("a", 2, 4)), entryOf(0, 1, asked("a", 0, 2), asked("a", 2, 4))},
			[]place{{1, 0}, {1, 1}, {2, 0}, {2, 1}}, 0},
		"the same id with other content": {[]flow.Entry{entryOf(0, 0, asked("a", 0, 1)), entryOf(0, 1, other(asked("a", 0, 1), "another"))},
			[]place{{1, 0}, {2, 0}}, 0},
		"the same of another source": {[]flow.Entry{entryOf(0, 0, asked("a", 0, 1)), entryOf(0, 1, of(asked("a", 0, 1), "engine-b", ""), asked("a", 0, 1))},
			[]place{{1, 0}, {2, 0}}, 0},
		"the same of another subject": {[]flow.Entry{entryOf(0, 0, asked("a", 0, 1), of(asked("a", 0, 1), "engine", "b")), entryOf(0, 1, asked("a", 0, 1))},
			[]place{{1, 0}, {1, 1}}, 0},
		"just within the window": {[]flow.Entry{entryOf(0, 0, asked("a", 0, 1)), tick(30), tick(60), tick(90), entryOf(seconds(120), 4, asked("a", 0, 1))},
			[]place{{1, 0}}, 0},
		"beyond the window": {append(ticks(0, 20, asked("a", 0, 1)), entryOf(seconds(20*30+1), 20, asked("a", 0, 1))), []place{{1, 0}, {22, 0}}, 0},
		"after an outage of a day, and a step back": {[]flow.Entry{
			entryOf(0, 0, asked("a", 0, 1)), entryOf(seconds(86_400), 1, asked("b", 0, 1)), entryOf(-seconds(600), 2, asked("c", 0, 1)),
			entryOf(seconds(86_400), 3, asked("a", 0, 1)),
		}, []place{{1, 0}, {2, 0}, {3, 0}}, 0},
		"one that is dropped counts for the next": {append(append(ticks(0, 15, asked("a", 0, 1)), entryOf(seconds(451), 15, asked("a", 0, 1))),
			append(ticks(16, 30), entryOf(seconds(901), 30, asked("a", 0, 1)))...), []place{{1, 0}}, 0},
		"of a frozen api": {append(append(ticks(0, 1, asked("a", 0, 1)), ticks(2, 12, asked("b", 0, 1))...),
			entryOf(seconds(331), 1, asked("c", 0, 2)), entryOf(seconds(331), 13, asked("c", 0, 2))), []place{{1, 0}, {3, 0}, {15, 0}, {15, 1}}, 2},
		"before the lane was set back": {[]flow.Entry{entryOf(0, 0, asked("a", 0, 1)), entryOf(0, 2, asked("b", 0, 1)), entryOf(0, 2, asked("b", 0, 1))},
			[]place{{1, 0}, {3, 0}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				for _, e := range tt.entries {
					w.publishEntry(e)
				}
				finish(t, w, ingest.Config{Owner: "a"})
				stored := map[place]int{}
				for _, at := range tt.want {
					stored[at] = 1
				}
				expect.Equal(t, "stored", stored, w.table)
				records := 0
				for _, e := range w.messages {
					records += e.Records()
				}
				ledger := dedup.NewLedger(10*time.Minute, nil)
				for i := range w.messages { // verify makes the same decision
					void, sentBefore := ledger.Add(&w.messages[i])
					for j := range w.messages[i].Messages {
						m := &w.messages[i].Messages[j]
						for index := m.Index; !void(m) && index < m.Index+m.Records; index++ {
							if sure, _ := sentBefore(m, index); !m.Identified && sure == (stored[place{m.Seq, index}] == 1) {
								t.Errorf("ledger: record %d of message %d: sent before: %t", index, m.Seq, sure)
							}
						}
					}
				}
				totals := flow.Totals{
					Read: uint64(records), Stored: uint64(len(tt.want)), Void: tt.void, Deduplicated: uint64(records-len(tt.want)) - tt.void,
				}
				expect.Equal(t, "totals", totals, w.state.Totals)
			})
		})
	}
}

// tick is an entry without messages at a second.
func tick(second int) flow.Entry {
	m := asked("", 0, 0)
	m.Identified = true
	return entryOf(seconds(second), 0, m)
}

// ticks are entries every 30 seconds, from an api that has read all before; the first has
// requests.
func ticks(from, to int, first ...flow.Message) (list []flow.Entry) {
	for i := from; i <= to; i++ {
		e := tick(30 * i)
		e.LogEnd = uint64(i)
		if i == from && len(first) > 0 {
			e.Messages = first
		}
		list = append(list, e)
	}
	return list
}

// TestRequestsAreDeduplicatedAfterATakeover: the new owner reads from the message the lane state
// requires, and nothing before it.
func TestRequestsAreDeduplicatedAfterATakeover(t *testing.T) {
	for name, tt := range map[string]struct {
		before, after []flow.Entry
		purge         func(w *world) uint64 // messages purged in between
		want          int                   // stored
	}{
		"a repeat": {[]flow.Entry{entryOf(0, 0, asked("a", 0, 3))}, []flow.Entry{entryOf(0, 1, asked("a", 0, 3))}, nil, 3},
		"a repeat, and all is purged that may be": {append(ticks(0, 40), entryOf(seconds(1200), 40, asked("a", 0, 3)), entryOf(seconds(1200), 41, asked("b", 0, 1))),
			[]flow.Entry{entryOf(seconds(1200), 42, asked("a", 0, 3))}, func(w *world) uint64 { return w.state.DedupFrom - 1 }, 4},
		"a void one is no occurrence": {append(ticks(0, 12, asked("a", 0, 1)), entryOf(seconds(361), 0, asked("b", 0, 1))),
			[]flow.Entry{entryOf(seconds(361), 14, asked("b", 0, 1))}, nil, 2},
		"a void one whose place is not known any more": {append(ticks(0, 30), entryOf(seconds(901), 0, asked("b", 0, 1))),
			[]flow.Entry{entryOf(seconds(901), 32, asked("b", 0, 1))}, func(w *world) uint64 { return w.state.DedupFrom - 1 }, 1},
		"one that was on its way all the time": {ticks(0, 40), []flow.Entry{entryOf(seconds(1201), 5, asked("b", 0, 1))},
			func(w *world) uint64 { return w.state.DedupFrom - 1 }, 0},
		"one that was on its way for a moment": {ticks(0, 40), []flow.Entry{entryOf(seconds(1201), 39, asked("b", 0, 1))},
			func(w *world) uint64 { return w.state.DedupFrom - 1 }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				for _, e := range tt.before {
					w.publishEntry(e)
				}
				finish(t, w, ingest.Config{Owner: "a"})
				if tt.purge != nil {
					w.purged = tt.purge(w)
				}
				for _, e := range tt.after {
					w.publishEntry(e)
				}
				finish(t, w, ingest.Config{Owner: "b"})
				expect.Not(t, len(w.table) != tt.want, "%d records are stored, want %d: %v", len(w.table), tt.want, w.table)
			})
		})
	}
}

// TestRequestsBeyondMemory: the oldest are dropped, and a metric reports it.
func TestRequestsBeyondMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		const requests = 3000 // the limit allows a ring of 1024
		for i := range requests {
			w.publishEntry(entryOf(time.Duration(i)*100*time.Millisecond, uint64(i), asked(strconv.Itoa(i), 0, 1)))
		}
		w.publishEntry(entryOf(seconds(300), requests, asked("0", 0, 1), asked(strconv.Itoa(requests-1), 0, 1)))
		finish(t, w, ingest.Config{Owner: "a", RepeatBytes: 17 << 10, MaxRows: 100}, func(reg *prometheus.Registry) {
			if reach := sample(t, reg, `sluice_ingest_deduplication_window_seconds{lane="0"}`); reach < 80 || reach > 110 {
				t.Errorf("the reported window is %v s, want about 100", reach)
			}
		})
		expect.Equal(t, "records are stored", requests+1, len(w.table))
	})
}

// TestRequestsAgainstASlowOracle: requests are resent, whole and in pieces, by processes that
// crash in between. The oracle keeps every request.
func TestRequestsAgainstASlowOracle(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 7))
				w := newWorld()
				now := time.Duration(0)
				oracle, want := dedup.NewLedger(10*time.Minute, nil), map[place]int{}
				for turn := range 6 {
					for range 40 {
						now += time.Duration(r.IntN(25)-3) * time.Second
						var list []flow.Message
						for range 1 + r.IntN(4) {
							from := r.IntN(4)
							m := asked(strconv.Itoa(r.IntN(30)), from, from+1+r.IntN(4))
							m.Identified = r.IntN(5) == 0
							list = append(list, m)
						}
						last := uint64(len(w.messages))
						e := entryOf(now, last-min(last, uint64(r.IntN(3)*r.IntN(20))), list...)
						w.publishEntry(e)
						e = w.messages[last]
						void, sentBefore := oracle.Add(&e)
						for i := range e.Messages {
							m := &e.Messages[i]
							for index := m.Index; !void(m) && index < m.Index+m.Records; index++ {
								if sure, _ := sentBefore(m, index); !sure {
									want[place{e.Seq, index}] = 1
								}
							}
						}
					}
					if turn%2 == 1 {
						dies := w.step + 20 + r.IntN(100)
						w.fault = func(step int, _ string) fault {
							if step == dies {
								return crashedAfter
							}
							return none
						}
						w.settle(t, ingest.Config{MaxRows: 20})
						w.fault = func(int, string) fault { return none }
					}
					finish(t, w, ingest.Config{Owner: fmt.Sprint(turn), MaxRows: 30})
					w.purged = max(w.purged, w.state.DedupFrom-1)
				}
				expect.Equal(t, "stored", want, w.table)
				expect.Not(t, len(w.broken) > 0, "broken: %v", w.broken)
			})
		})
	}
}

// TestTheSecondEntryOfALaneIsNeverVoid: two apis send the first entries of a new lane, the second
// without having read the first. Between them another ingester takes the lane. A rolling restart
// showed that the acknowledged second entry was skipped.
func TestTheSecondEntryOfALaneIsNeverVoid(t *testing.T) {
	for name, first := range map[string]flow.Message{
		"nothing before it is remembered": posted("a", at(1, 1)), // its records have a deduplication key
		"what is before it is remembered": asked("a", 0, 1),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				first.Identified = first.ID == ""
				w.publishEntry(entryOf(0, 0, first))
				finish(t, w, ingest.Config{Owner: "one"})
				w.publishEntry(entryOf(seconds(1), 0, asked("b", 0, 2)))
				finish(t, w, ingest.Config{Owner: "two"})
				want := map[place]int{{1, 0}: 1, {2, 0}: 1, {2, 1}: 1}
				if diff := cmp.Diff(want, w.table); diff != "" || w.state.Totals.Void != 0 {
					t.Errorf("%d void (-want +got):\n%s", w.state.Totals.Void, diff)
				}
			})
		})
	}
}
