package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

// backlog is a world in which messages wait, each of which is a full block of
// atOnce, and what is left when all are stored.
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
		Table: rows, View: rows, Dead: map[place]string{}, Bodies: map[place]string{}, Done: n, Stored: n,
		Totals: flow.Totals{Read: 8 * n, Stored: 8 * n},
	}
}

// TestPiecesOfAFullBlockAreInsertedAtOnce: both are on their way before either has
// ended; what is not full is one insert.
func TestPiecesOfAFullBlockAreInsertedAtOnce(t *testing.T) {
	for _, pieces := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(pieces), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, want := backlog(3)
				w.publish(message(rec("last")))
				want.Table[place{4, 0}], want.Done, want.Stored, want.Totals = 1, 4, 4, flow.Totals{Read: 25, Stored: 25}
				begun, most, now := map[string]time.Time{}, 0, 0
				w.before = func(op string) {
					if !strings.HasPrefix(op, "insert ") {
						return
					}
					w.mu.Lock()
					begun[op] = time.Now()
					now++
					most = max(most, now)
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
				if most != pieces {
					t.Errorf("at most %d inserts were on their way at once, want %d", most, pieces)
				}
				tokens := w.inserts()
				if last := tokens[len(tokens)-1]; strings.ContainsAny(last, "*#") {
					t.Errorf("the last block, which was not full, was inserted as %s", last)
				}
				if want := 3*pieces + 1; len(tokens) != want || len(begun) != want {
					t.Errorf("inserted %v, want %d inserts", tokens, want)
				}
			})
		})
	}
}

// TestACrashAmidPieces: of two pieces that are inserted at once, each is stored or
// not when the process dies, or its table alone is; and the next owner may insert
// another way, and may meet what it likes.
func TestACrashAmidPieces(t *testing.T) {
	left := map[string]fault{"nothing is there": crashedFirst, "it is there": crashedAfter, "the views have not heard of it": partly}
	for first, ofFirst := range left {
		for second, ofSecond := range left {
			for next, then := range map[string]struct {
				cfg    ingest.Config
				refuse string // ends the ids of rows that are refused
				large  bool   // more than a row is too much
				old    bool   // the tokens are forgotten
			}{
				"inserts at once":           {cfg: atOnce},
				"inserts one by one":        {cfg: small},
				"has larger blocks":         {cfg: ingest.Config{Together: 3}},
				"meets a refusal":           {cfg: atOnce, refuse: "-2"},
				"meets a refusal elsewhere": {cfg: atOnce, refuse: "-6"},
				"meets too little memory":   {cfg: atOnce, large: true},
				"comes late":                {cfg: atOnce, old: true},
			} {
				t.Run(fmt.Sprintf("of the first piece %s, of the second %s; the next %s", first, second, next), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w, want := backlog(3)
						crashed := 0
						w.faults = func(_ int, op string) fault {
							if crashed == 2 || !isInsert(op) {
								return none
							}
							crashed++
							f := ofSecond
							if isFirstPiece(op) {
								f = ofFirst
							}
							if f == partly {
								return partly
							}
							if crashed == 1 { // the other one is on its way
								if f == crashedFirst {
									return failed
								}
								return applied
							}
							return f
						}
						p, stop := w.start(t, "first", atOnce)
						time.Sleep(10 * time.Millisecond)
						synctest.Wait()
						w.mu.Lock()
						p.gone = true
						p.crash()
						w.mu.Unlock()
						_ = stop()
						if crashed != 2 || w.position.Claim == nil || w.position.Done != 0 {
							t.Fatalf("after %d faults the position is %+v", crashed, w.position)
						}
						w.mu.Lock()
						w.faults = func(int, string) fault { return none }
						if then.refuse != "" {
							// Only of what is not there: what was taken once is not refused.
							w.refuse = func(c *record.Columns, i int) bool {
								return strings.HasSuffix(c.ID(i), then.refuse) && w.table[place{c.StreamSeq[i], int(c.StreamIdx[i])}] == 0
							}
							for at := range maps.Clone(want.Table) {
								if fmt.Sprintf("-%d", at.Index) == then.refuse && w.table[at] == 0 {
									delete(want.Table, at) // of the views too
									want.Dead[at], want.Bodies[at] = "refused", rec(fmt.Sprintf("%d-%d", at.Seq, at.Index))
								}
							}
							want.Totals.Dead = uint64(len(want.Dead))
							want.Totals.Stored -= want.Totals.Dead
						}
						if then.large {
							w.insert = func(b record.Block) error {
								if from, to := rowsOf(b); to-from > 1 && w.tokens["table"][b.Claim.Token] == 0 {
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
						time.Sleep(time.Minute)
						w.settle(t, then.cfg)
						compare(t, w, want)
					})
				})
			}
		}
	}
}

// TestAPieceOfAnotherProcessMayStillRun: nothing smaller is claimed of a piece that a
// process which is gone may have sent, and which may arrive, before that is over.
func TestAPieceOfAnotherProcessMayStillRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, want := backlog(1)
		var late record.Block
		w.insert = func(b record.Block) error {
			if b.Claim.From > 0 {
				columns := *b.Columns
				late = record.Block{Claim: b.Claim, Columns: &columns}
			}
			return &flow.StoreError{Class: flow.ClassRetry, Err: errors.New("no answer")}
		}
		p, stop := w.start(t, "first", atOnce)
		time.Sleep(10 * time.Millisecond)
		w.mu.Lock()
		p.gone = true
		p.crash()
		w.insert = func(b record.Block) error {
			if from, to := rowsOf(b); from > 0 && to-from > 1 {
				return &flow.StoreError{Class: flow.ClassRetry, Code: 241, Large: true, Err: errors.New("memory")}
			}
			return nil
		}
		w.mu.Unlock()
		_ = stop()
		_, stop = w.start(t, "second", atOnce)
		time.Sleep(10 * time.Minute)
		w.mu.Lock()
		tables{&process{world: w}}.store("table", w.table, late)
		tables{&process{world: w}}.store("view", w.view, late)
		w.insert = func(record.Block) error { return nil }
		w.mu.Unlock()
		time.Sleep(time.Minute)
		if err := stop(); err != nil {
			t.Error(err)
		}
		compare(t, w, want)
		if len(w.inserts()) < 10 {
			t.Errorf("it gave up: %v", w.inserts())
		}
	})
}

// TestTheTokenOfAPieceWithoutItsRowsHalts: ClickHouse was killed amid the second of
// two pieces, and knows its token and none of its rows.
func TestTheTokenOfAPieceWithoutItsRowsHalts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := backlog(2)
		killed := false
		w.insert = func(b record.Block) error {
			if killed || b.Claim.From == 0 {
				return nil
			}
			killed = true
			w.tokens["table"][b.Claim.Token] = b.Claim.To - b.Claim.From
			return &flow.StoreError{Class: flow.ClassRetry, Err: errors.New("killed")}
		}
		i, stop := w.startIngester(t, atOnce)
		time.Sleep(time.Minute)
		if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "halted") || !strings.Contains(err.Error(), "none of its rows of [200001]") {
			t.Errorf("Check says %v, want halted: none of its rows of [200001]", err)
		}
		stop()
		if w.done() != 0 {
			t.Error("the block was passed over")
		}
	})
}

// TestAClaimOfTheVersionBeforeIsCompleted: it says nothing of pieces, and its block is
// as full as one that is inserted at once.
func TestAClaimOfTheVersionBeforeIsCompleted(t *testing.T) {
	for _, stored := range []bool{false, true} {
		t.Run(fmt.Sprintf("it is stored %v", stored), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, want := backlog(2)
				w.faults = func(_ int, op string) fault {
					switch {
					case strings.HasPrefix(op, "insert ") && stored:
						return crashedAfter
					case strings.HasPrefix(op, "insert "):
						return crashedFirst
					}
					return none
				}
				_, stop := w.start(t, "before", small)
				time.Sleep(time.Second)
				_ = stop()
				claim := *w.position.Claim
				if claim.To != 0 || strings.ContainsAny(claim.Token, "*#") {
					t.Fatalf("the claim is %+v", claim)
				}
				w.faults = func(int, string) fault { return none }
				w.settle(t, atOnce)
				compare(t, w, want)
				if !slices.Contains(w.inserts()[1:], claim.Token) {
					t.Errorf("inserted %v, and not what was claimed: %s", w.inserts(), claim.Token)
				}
			})
		})
	}
}

// TestWhatIsTooMuchAtOnceIsNotTriedAtOnceAgain: it fails, and for a minute blocks are
// inserted one piece after the other.
func TestWhatIsTooMuchAtOnceIsNotTriedAtOnceAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, want := backlog(80)
		onTheirWay, together := 0, map[time.Time]int{}
		start := time.Now()
		w.before = func(op string) {
			if !strings.HasPrefix(op, "insert ") {
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
		if tries < 2 {
			t.Errorf("it was tried %d times, want at first and after a minute", tries)
		}
	})
}

// TestAHoldWaitsForAllPieces: while one of them is on its way the block is claimed,
// and nothing new is claimed after it.
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
		if p, rows := w.state(); p.Claim == nil || rows != 4 {
			t.Fatalf("with one of two pieces stored the position is %+v, with %d rows", p, rows)
		}
		w.hold(time.Now().Add(time.Minute))
		close(wake)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if p, rows := w.state(); p.Claim != nil || p.Done != 1 || rows != 8 {
			t.Errorf("while it is held the position is %+v with %d rows, want one message done and no claim", p, rows)
		}
		time.Sleep(2 * time.Minute)
		if err := stop(); err != nil {
			t.Error(err)
		}
		compare(t, w, want)
	})
}

// distant is a warehouse with cores to spare at the end of a long line, and a lane
// that is read as fast as one core decodes it: what takes time is told, and passes in
// virtual time.
type distant struct {
	*flood
	answer time.Duration // of each of the two that an insert waits for
	mu     sync.Mutex
	done   []uint64    // messages, as the position was moved
	when   []time.Time // it was
}

// What an insert takes of one core for each row, with all views, as docs/decisions/0037-what-the-table-costs.md has it;
// what decoding takes; and a move of the position.
const (
	insertPerRow = 3300 * time.Nanosecond
	decodePerRow = 1500 * time.Nanosecond
	moveTime     = 5 * time.Millisecond
)

func (d *distant) Open(context.Context, int, uint64) (ingest.Reader, error) { return d, nil }

func (d *distant) Next(ctx context.Context) (flow.Entry, error) {
	time.Sleep(perMessage * decodePerRow)
	return d.flood.Next(ctx)
}

func (d *distant) Insert(_ context.Context, b record.Block) error {
	from, to := rowsOf(b)
	time.Sleep(2*d.answer + time.Duration(to-from)*insertPerRow)
	return nil
}

func (d *distant) Swap(ctx context.Context, lane int, next flow.Position) (flow.Position, error) {
	time.Sleep(moveTime)
	d.mu.Lock()
	d.done, d.when = append(d.done, next.Done), append(d.when, time.Now())
	d.mu.Unlock()
	return d.flood.Swap(ctx, lane, next)
}

// TestOneLaneFarFromItsWarehouse: with every answer 50 ms later a lane stores more
// than 250 000 records a second, which one insert at a time does not.
func TestOneLaneFarFromItsWarehouse(t *testing.T) {
	t.Parallel()
	var body strings.Builder
	for i := range perMessage {
		fmt.Fprintf(&body, `,{"partitionId":1,"position":%d,"timestamp":%d}`, i+1, noon)
	}
	rate := func(answer time.Duration, pieces int) (perSecond float64) {
		synctest.Test(t, func(t *testing.T) {
			d := &distant{flood: &flood{more: make(chan int), messages: []flow.Message{{
				Topic: "flow.0.record", Records: perMessage, Body: []byte("[" + body.String()[1:] + "]"),
			}}}, answer: answer}
			for n := range 1000 {
				d.sources = append(d.sources, fmt.Sprint("engine-", n))
			}
			i := ingest.New(ingest.Config{Owner: "a", Together: pieces, PieceBytes: 1},
				ingest.Deps{Leases: onlyLane{}, Lanes: d, Positions: d, Warehouse: d, DeadLetters: deadLetters{}},
				slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- i.Run(ctx) }()
			d.more <- 700
			time.Sleep(time.Minute)
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			from, to := slices.IndexFunc(d.done, func(n uint64) bool { return n >= 200 }), len(d.done)-1
			if d.done[to] != 700 {
				t.Fatalf("%d messages are done", d.done[to])
			}
			for d.done[to] > 600 { // the last block is not full
				to--
			}
			perSecond = float64(d.done[to]-d.done[from]) * perMessage / d.when[to].Sub(d.when[from]).Seconds()
		})
		return perSecond
	}
	for _, answer := range []time.Duration{0, 50 * time.Millisecond} {
		one, two, four := rate(answer, 1), rate(answer, 2), rate(answer, 4)
		t.Logf("answers %v later: %.0f records/s with one insert at a time, %.0f with two at once, %.0f with four", answer, one, two, four)
		if answer > 0 && (one >= 250_000 || two < 250_000) {
			t.Errorf("want less than 250 000 with one and as many with two")
		}
	}
}
