package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

func (w *world) run(t *testing.T, cfg ingest.Config, d time.Duration) {
	t.Helper()
	_, stop := w.start(t, "a", cfg)
	time.Sleep(d)
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// dieInserting runs an ingester that dies in its insert, and leaves its claim open.
func (w *world) dieInserting(t *testing.T, how fault) {
	t.Helper()
	w.fault = func(_ int, op string) fault {
		if strings.HasPrefix(op, "insert ") {
			return how
		}
		return none
	}
	w.run(t, ingest.Config{}, time.Minute)
	w.fault = func(int, string) fault { return none }
}

func (w *world) done() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.Done
}

// inserts are the tokens of all inserts so far, including failed attempts.
func (w *world) inserts() (tokens []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, line := range w.history {
		if _, rest, ok := strings.Cut(line, " insert "); ok {
			token, _, _ := strings.Cut(rest, ": ")
			tokens = append(tokens, token)
		}
	}
	return tokens
}

// claim is an ingester's claim of the messages from first to last.
func (w *world) claim(first, last uint64) *flow.Claim {
	copied := newWorld()
	copied.messages, copied.state = w.messages[:last], flow.LaneState{StreamID: w.identity, Done: first - 1}
	copied.insert = func(record.Block) error {
		return &flow.StoreError{Class: flow.ClassRetry, Err: errInjected}
	}
	i := ingest.New(ingest.Config{Owner: "copy"}, (&process{world: copied}).deps(), slog.New(slog.DiscardHandler), newRegistry())
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	_ = i.Run(ctx)
	return copied.state.Claim
}

func TestAnOutageOfTheWarehouseStrandsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		away := true
		w.insert = func(record.Block) error {
			if away {
				return &flow.StoreError{Class: flow.ClassRetry, Err: errors.New("connection refused")}
			}
			return nil
		}
		for i := range 100 {
			w.publish(message(rec(fmt.Sprint(i))))
		}
		p, stop := w.start(t, "a", ingest.Config{MaxRows: 7})
		time.Sleep(10 * time.Minute)
		first := w.inserts()
		if n := len(first); n < 20 || n > 60 {
			t.Errorf("tried %d times in 10 minutes: want about one every 15 to 30 s, and quickly at first", n)
		}
		for _, token := range first {
			if token != first[0] {
				t.Fatalf("tried other blocks than the one claimed: %s after %s", token, first[0])
			}
		}
		w.mu.Lock()
		away = false
		w.mu.Unlock()
		time.Sleep(35 * time.Second)
		expect.Equal(t, "messages done 35 s after the outage", 100, w.done())
		w.mu.Lock()
		expect.Equal(t, "stamp of the last message", 1_100, w.state.Stamp)
		w.mu.Unlock()
		if err := stop(); err != nil || p.gone {
			t.Error(err)
		}
		if len(w.table) != 100 || len(w.dead) != 0 {
			t.Errorf("%d records stored and %d dead, want 100 and none", len(w.table), len(w.dead))
		}
	})
}

func TestErrorClasses(t *testing.T) {
	tests := []struct {
		name     string
		class    flow.Class
		halts    bool // within a minute
		attempts int  // minimum in ten minutes
	}{
		{"an outage is retried and never halts", flow.ClassRetry, false, 20},
		{"a wrong schema halts immediately and is probed", flow.ClassHalt, true, 30},
		{"an unknown error is retried some times, then halts and is probed", flow.ClassUnknown, true, 30},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				fixed := false
				w.insert = func(record.Block) error {
					if fixed {
						return nil
					}
					return &flow.StoreError{Class: tt.class, Err: errors.New("broken")}
				}
				w.publish(message(rec("1")))
				i, stop := w.startIngester(t, ingest.Config{Unknowns: 3})
				time.Sleep(time.Minute)
				err := i.Check(t.Context())
				if got := err != nil && strings.Contains(err.Error(), "halted"); got != tt.halts {
					t.Errorf("after a minute Check: got %v, want halted: %v", err, tt.halts)
				}
				expect.Not(t, err == nil, "Check succeeds after a minute of failures")
				time.Sleep(9 * time.Minute)
				if n := len(w.inserts()); n < tt.attempts {
					t.Errorf("tried %d times in 10 minutes, want at least %d", n, tt.attempts)
				}
				if w.done() != 0 || len(w.dead) != 0 {
					t.Errorf("done %d, dead %v: want nothing", w.done(), w.dead)
				}
				w.mu.Lock()
				fixed = true
				w.mu.Unlock()
				time.Sleep(35 * time.Second)
				expect.Equal(t, "done after it was fixed", 1, w.done())
				if err := i.Check(t.Context()); err != nil {
					t.Errorf("Check, after it was fixed: got %v", err)
				}
				stop()
			})
		})
	}
}

// TestAConstraintThatIsNewerThanStoredRows: an insert was stored and its answer lost; its repeat is rejected by a constraint
// that was added in between. The rows are stored, and nothing is halted or dead-lettered.
func TestAConstraintThatIsNewerThanStoredRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stored := false
		w.insert = func(b record.Block) error {
			if stored {
				return &flow.StoreError{Class: flow.ClassPoison, Code: 469, Err: errors.New("refused")}
			}
			stored = true
			w.arrive("table", b)
			return &flow.StoreError{Class: flow.ClassRetry, Err: errInjected}
		}
		w.publish(message(rec("1"), rec("2")))
		i, stop := w.startIngester(t, ingest.Config{})
		time.Sleep(time.Minute)
		expect.NoError(t, i.Check(t.Context()))
		stop()
		want := map[place]int{{1, 0}: 1, {1, 1}: 1}
		if diff := cmp.Diff(outcome{Table: want, View: want, Dead: map[place]string{}, Bodies: map[place]string{}, Done: 1, LastRow: 1, Totals: flow.Totals{Read: 2, Stored: 2}, Recount: []string{"2000-01-01"}}, w.outcome()); diff != "" {
			t.Errorf("outcome (-want +got):\n%s", diff)
		}
	})
}

func TestABlockOfWhichTheTableHasRowsIsNotDivided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		// A materialized view rejects rows that the table has stored, on one replica at first.
		fixed := false
		w.lags = true
		w.insert = func(b record.Block) error {
			if fixed {
				return nil
			}
			w.arrive("table", b)
			return &flow.StoreError{Class: flow.ClassPoison, Code: 395, InView: true, Err: errors.New("refused")}
		}
		w.publish(message(rec("1"), rec("2")))
		i, stop := w.startIngester(t, ingest.Config{})
		for _, want := range []string{"a replica of ClickHouse has 0 rows where another has 2", "a materialized view failed"} {
			time.Sleep(time.Minute)
			if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Check: got %v, want %s", err, want)
			}
			w.mu.Lock()
			w.lags = false
			w.mu.Unlock()
		}
		w.mu.Lock()
		fixed = true
		w.mu.Unlock()
		time.Sleep(time.Minute)
		stop()
		want := map[place]int{{1, 0}: 1, {1, 1}: 1}
		if diff := cmp.Diff(outcome{Table: want, View: want, Dead: map[place]string{}, Bodies: map[place]string{}, Done: 1, LastRow: 1, Totals: flow.Totals{Read: 2, Stored: 2}}, w.outcome()); diff != "" {
			t.Errorf("outcome (-want +got):\n%s", diff)
		}
	})
}

func TestAPausedOwnerDoesNoHarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		wake := make(chan struct{})
		paused := false
		w.insert = func(record.Block) error {
			if !paused {
				paused = true
				w.mu.Unlock() // the other goroutines continue
				<-wake
				w.mu.Lock()
			}
			return nil
		}
		w.publish(message(rec("1")))
		_, stopA := w.start(t, "a", small)
		time.Sleep(time.Second) // a has claimed message 1 and is paused before its insert
		_, stopB := w.start(t, "b", small)
		time.Sleep(time.Second)
		for i := range 20 {
			w.publish(message(rec(fmt.Sprint("later ", i))))
			time.Sleep(time.Second)
		}
		close(wake) // a repeats b's insert, and continues
		w.publish(message(rec("last")))
		time.Sleep(time.Second)
		if err := stopA(); !errors.Is(err, flow.ErrNotOwner) {
			t.Errorf("the paused owner ended with %v, want %v", err, flow.ErrNotOwner)
		}
		expect.NoError(t, stopB())
		want := map[place]int{}
		for seq := range uint64(22) {
			want[place{seq + 1, 0}] = 1
		}
		if diff := cmp.Diff(outcome{Table: want, View: want, Dead: map[place]string{}, Bodies: map[place]string{}, Done: 22, LastRow: 22, Totals: flow.Totals{Read: 22, Stored: 22}}, w.outcome()); diff != "" {
			t.Errorf("outcome (-want +got):\n%s\n%s", diff, strings.Join(w.history, "\n"))
		}
	})
}

// TestARefusalOfManyRowsHalts: a new constraint or view rejects everything, and the rows are
// valid.
func TestARefusalOfManyRowsHalts(t *testing.T) {
	for name, messages := range map[string]int{"of one block": 1, "of many small blocks": 1000} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.refuse = func(*record.Columns, int) bool { return true }
				i, stop := w.startIngester(t, ingest.Config{Rejections: 20})
				for n := range messages {
					var rows []string
					for r := range 1000 / messages {
						rows = append(rows, rec(fmt.Sprint(n*1000+r)))
					}
					w.publish(message(rows...))
					time.Sleep(time.Second)
				}
				time.Sleep(time.Minute)
				if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "halted") || !strings.Contains(err.Error(), "check constraints and materialized views") {
					t.Errorf("Check: got %v, want that the lane is halted, and why", err)
				}
				w.mu.Lock()
				dead := len(w.dead)
				w.refuse = func(*record.Columns, int) bool { return false }
				w.mu.Unlock()
				// Rejections of one block wait: an earlier insert of it may still arrive.
				if want := map[int]int{1: 0, 1000: 20}[messages]; dead != want {
					t.Errorf("%d rows are dead-lettered when it halts, want %d", dead, want)
				}
				time.Sleep(time.Minute)
				if err := i.Check(t.Context()); err != nil || w.done() != uint64(messages) || len(w.table) != 980 || len(w.dead) != 20 {
					t.Errorf("when it is fixed: %v, %d messages done, %d rows and %d dead, want %d, 980 and 20", err, w.done(), len(w.table), len(w.dead), messages)
				}
				stop()
			})
		})
	}
}

// TestABlockThatIsTooMuchAtOnce: repeating the same rows would fail forever.
func TestABlockThatIsTooMuchAtOnce(t *testing.T) {
	const rows = 1000
	for name, insert := range map[string]func(w *world, b record.Block) error{
		"for the memory of the warehouse": func(_ *world, b record.Block) error {
			if b.To-b.From > 150 {
				return &flow.StoreError{Class: flow.ClassRetry, Code: 241, Large: true, Err: errors.New("memory")}
			}
			return nil
		},
		"for the first attempt's time": func(_ *world, b record.Block) error {
			const needed = 4 * time.Minute
			if b.Timeout < needed {
				return &flow.StoreError{Class: flow.ClassRetry, Slow: true, Err: context.DeadlineExceeded}
			}
			return nil
		},
		"for any time": func(_ *world, b record.Block) error {
			if time.Duration(b.To-b.From)*10*time.Second > b.Timeout {
				return &flow.StoreError{Class: flow.ClassRetry, Code: 159, Slow: true, Err: errors.New("time")}
			}
			return nil
		},
	} {
		for _, taken := range []bool{false, true} { // claimed by an earlier process
			t.Run(fmt.Sprintf("%s, taken over %v", name, taken), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld()
					var all []string
					for r := range rows {
						all = append(all, rec(fmt.Sprint(r)))
					}
					w.publish(message(all...))
					if taken {
						w.insert = func(record.Block) error {
							return &flow.StoreError{Class: flow.ClassRetry, Err: errors.New("connection refused")}
						}
						w.run(t, ingest.Config{}, time.Minute)
					}
					w.insert = func(b record.Block) error { return insert(w, b) }
					i, stop := w.startIngester(t, ingest.Config{})
					time.Sleep(time.Hour)
					if err := i.Check(t.Context()); err != nil || w.done() != 1 || len(w.table) != rows || len(w.dead) != 0 {
						t.Errorf("%v, %d messages done, %d rows, %d dead: want all %d stored", err, w.done(), len(w.table), len(w.dead), rows)
					}
					stop()
					for at, n := range w.table {
						if n != 1 || w.view[at] != 1 {
							t.Fatalf("%v is there %d times, and %d times in the view", at, n, w.view[at])
						}
					}
					if len(w.broken) > 0 {
						t.Error(w.broken)
					}
				})
			})
		}
	}
}

// TestALongRunOfDeadLettersBeats so that the heartbeat watchdog does not treat it as stuck.
func TestALongRunOfDeadLettersBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.refuse = func(c *record.Columns, i int) bool { return strings.HasPrefix(c.ID(i), "poison") }
		w.before = func(op string) {
			if strings.HasPrefix(op, "dead-lettered") || strings.HasPrefix(op, "apply") {
				time.Sleep(50 * time.Second)
			}
		}
		w.publish(message("1", rec("poison 1"), rec("poison 2"), "2", rec("poison 3"), "3", rec("4")))
		for range 6 {
			w.publish(flow.Message{Topic: "flow.0.change.user.YQ", Body: []byte("never")})
		}
		last, longest := map[string]time.Time{}, time.Duration(0)
		var beats sync.Mutex
		i, stop := w.startIngester(t, ingest.Config{Heartbeat: func(loop string) (func(), func()) {
			beat := func() {
				beats.Lock()
				defer beats.Unlock()
				if before, ok := last[loop]; ok {
					longest = max(longest, time.Since(before))
				}
				last[loop] = time.Now()
			}
			beat()
			return beat, func() {}
		}})
		time.Sleep(time.Hour)
		if err := i.Check(t.Context()); err != nil || w.done() != 7 || len(w.dead) != 12 {
			t.Errorf("%v, %d messages done, %d dead, want 7 and 12", err, w.done(), len(w.dead))
		}
		stop()
		expect.Not(t, longest > 2*time.Minute, "no heartbeat for %v", longest)
	})
}

func TestNoRoomForADeadLetterHalts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.full = true
		w.publish(message(rec("1")), flow.Message{Topic: "flow.0.record", Received: time.Now(), Body: []byte("[broken")}, message(rec("2")))
		i, stop := w.startIngester(t, ingest.Config{})
		time.Sleep(2 * time.Second)
		if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "halted") || !errors.Is(err, flow.ErrFull) {
			t.Errorf("Check: got %v, want that the lane is halted, and why", err)
		}
		w.mu.Lock()
		w.full = false
		w.mu.Unlock()
		time.Sleep(20 * time.Second)
		if err := i.Check(t.Context()); err != nil || w.done() != 3 {
			t.Errorf("when there is room: %v, %d messages done, want 3", err, w.done())
		}
		stop()
	})
}

// TestALaneWithoutItsStateHalts: the bucket of lane states was lost, the stream was not.
// Records without a deduplication key would be stored twice.
func TestALaneWithoutItsStateHalts(t *testing.T) {
	for name, lose := range map[string]struct {
		what func(w *world)
		want string
	}{
		"records are stored": {func(*world) {}, "records of its stream are stored up to message 2"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.created = time.Now().UnixMilli()
				w.publish(message(rec("1")), message(rec("2")))
				w.run(t, ingest.Config{}, time.Minute)
				lose.what(w)
				rows := len(w.rows)
				w.state = flow.LaneState{}
				i, stop := w.startIngester(t, ingest.Config{})
				time.Sleep(time.Minute)
				if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), lose.want) || !strings.Contains(err.Error(), "sluice lanes reset") {
					t.Errorf("Check: got %v, want %q and the remedy", err, lose.want)
				}
				stop()
				expect.Not(t, len(w.rows) != rows, "%d rows of %d: the lane continued", len(w.rows), rows)
			})
		})
	}
}

func TestAnUnknownChangeHalts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.publish(flow.Message{Topic: "flow.0.change.user.YQ", Body: []byte("{}")})
		i, stop := w.startIngester(t, ingest.Config{}, func(p *ingest.Deps) { p.Changes, p.Audits = nil, nil })
		time.Sleep(time.Minute)
		if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "this ingester does not apply changes") {
			t.Errorf("Check: got %v", err)
		}
		stop()
		expect.Not(t, w.done() != 0, "the change was passed over")
	})
}
