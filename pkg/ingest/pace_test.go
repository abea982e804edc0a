package ingest_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

// paced gives inserts a duration, and returns the rows of each.
func paced(w *world, took time.Duration) *[]int {
	rows := new([]int)
	w.insert = func(b record.Block) error {
		*rows = append(*rows, b.Columns.Rows())
		w.mu.Unlock()
		time.Sleep(took)
		w.mu.Lock()
		return nil
	}
	return rows
}

func TestATrickleStaysFreshAndMakesFewParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		rows := paced(w, 10*time.Millisecond)
		reg, i := newRegistry(), ingest.Config{}
		_, stop := (&process{world: w, name: "a"}).startWith(t, i, reg)
		for n := range 1000 { // 20 a second
			w.publish(message(rec(fmt.Sprint(n))))
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(time.Second)
		stop()
		if got := len(*rows); got > 50*4+2 {
			t.Errorf("%d blocks in 50 s, want at most 4 a second", got)
		}
		expect.Equal(t, "of 1000 records could be queried within 0.3 s", 1000, sample(t, reg, `sluice_ingest_freshness_seconds_bucket{le="0.3"}`))
	})
}

// TestATrickleLeavesClickHouseTime: where an insert has a fixed cost, a few more records wait for
// the next one instead of occupying ClickHouse.
func TestATrickleLeavesClickHouseTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		rows := paced(w, 100*time.Millisecond)
		reg := newRegistry()
		_, stop := (&process{world: w, name: "a"}).startWith(t, ingest.Config{}, reg)
		for n := range 1000 { // 20 a second
			w.publish(message(rec(fmt.Sprint(n))))
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(time.Second)
		stop()
		if got := time.Duration(len(*rows)) * 100 * time.Millisecond; got > 50*time.Second/8+time.Second {
			t.Errorf("inserts took %v of 50 s, want an eighth at most", got)
		}
		expect.Equal(t, "of 1000 records could be queried within a second", 1000, sample(t, reg, `sluice_ingest_freshness_seconds_bucket{le="1"}`))
	})
}

func TestASingleRecordAfterSilenceDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		paced(w, 10*time.Millisecond)
		reg := newRegistry()
		_, stop := (&process{world: w, name: "a"}).startWith(t, ingest.Config{}, reg)
		for range 10 {
			time.Sleep(10 * time.Second)
			w.publish(message(rec("1")))
		}
		time.Sleep(time.Second)
		stop()
		expect.Equal(t, "of 10 records went through without a pause", 10, sample(t, reg, `sluice_ingest_freshness_seconds_bucket{le="0.01"}`))
	})
}

// TestLanesTakeTurns: blocks of lanes that wait for each other are larger, and no lane waits for one that hangs.
func TestLanesTakeTurns(t *testing.T) {
	for _, tt := range []struct {
		name          string
		hangs         time.Duration // the first insert of lane 0 in the tenth second
		inserts, most int           // of all lanes, and of them at a time
	}{
		{"four lanes under load", 0, 4 * 25, 1},
		{"one of them hangs", 20 * time.Second, 4 * 25, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 4)
				var mu sync.Mutex
				inserting, most, inserts, hung := 0, 0, 0, false
				for n, w := range f.lanes {
					w.before = func(op string) {
						if !strings.HasPrefix(op, "insert") {
							return
						}
						took := 200 * time.Millisecond
						mu.Lock()
						inserting, inserts = inserting+1, inserts+1
						if time.Since(f.began) > 10*time.Second { // each lane has inserted once
							most = max(most, inserting)
						}
						if n == 0 && !hung && tt.hangs > 0 && time.Since(f.began) > 10*time.Second {
							hung, took = true, tt.hangs
						}
						mu.Unlock()
						time.Sleep(took)
						mu.Lock()
						inserting--
						mu.Unlock()
					}
				}
				f.start()
				time.Sleep(5 * time.Second)
				for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
					for n, w := range f.lanes {
						m := message(rec(fmt.Sprint(n, time.Now())))
						m.Lane, m.Topic = n, fmt.Sprintf("flow.%d.record", n)
						w.publishEntry(flow.Entry{Lane: n, Topic: m.Topic, Body: m.Body, Messages: []flow.Message{m}})
					}
					if hung { // the others go on
						for n, w := range f.lanes[1:] {
							w.mu.Lock()
							if behind := len(w.messages) - len(w.table); behind > 2*50 {
								t.Errorf("lane %d is %d messages behind", n+1, behind)
							}
							w.mu.Unlock()
						}
					}
				}
				time.Sleep(tt.hangs + 5*time.Second)
				f.end()
				f.settled()
				expect.Not(t, most > tt.most || inserts > tt.inserts+8, "%d inserts, %d at a time; want %d and %d", inserts, most, tt.inserts, tt.most)
			})
		})
	}
}

func TestAFloodMakesFullBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		rows := paced(w, 200*time.Millisecond)
		for m := range 300 {
			var records []string
			for n := range 100 {
				records = append(records, rec(fmt.Sprint(m, " ", n)))
			}
			w.publish(message(records...))
		}
		w.run(t, ingest.Config{MaxRows: 1000}, time.Minute)
		full := 0
		for _, n := range *rows {
			if n == 1000 {
				full++
			}
		}
		if full < 29 || len(*rows) > 31 { // the first block does not wait until it is full
			t.Errorf("blocks of %v rows, want them full but for the first and the last", *rows)
		}
	})
}

func TestABlockIsClosedByItsSize(t *testing.T) {
	big := func(id string) flow.Message {
		return message(`{"id":"` + id + `","value":{"variables":{"text":"` + strings.Repeat("a", 10_000) + `"}}}`)
	}
	tests := []struct {
		name     string
		cfg      ingest.Config
		messages []flow.Message
		want     string
	}{
		{"by rows, before the message that would be too many", ingest.Config{MaxRows: 5}, []flow.Message{message(rec("1"), rec("2"), rec("3")), message(rec("4"), rec("5"), rec("6")), message(rec("7"))}, "[1 3 4]"},
		{"a message that is too many by itself is a block", ingest.Config{MaxRows: 2}, []flow.Message{message(rec("1")), message(rec("2"), rec("3"), rec("4")), message(rec("5"))}, "[1 1 3 1]"},
		{"by bytes, after the message that reaches them", ingest.Config{MaxBytes: 15_000}, []flow.Message{big("1"), big("2"), big("3")}, "[1 2 1]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				rows := paced(w, time.Second)
				w.publish(message(rec("0"))) // messages that arrive meanwhile share the next insert
				time.AfterFunc(500*time.Millisecond, func() { w.publish(tt.messages...) })
				w.run(t, tt.cfg, time.Minute)
				expect.Equal(t, "blocks of rows", tt.want, fmt.Sprint(*rows))
			})
		})
	}
}

func TestLanesShareTheMemoryOfBlocks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		cfg   ingest.Config
		lanes int32
		want  int
	}{
		{"a lane alone has all of it", ingest.Config{SharedBytes: 8 << 20}, 1, 8 << 20},
		{"four have a quarter each", ingest.Config{SharedBytes: 8 << 20}, 4, 2 << 20},
		{"a minimum for any number of lanes", ingest.Config{SharedBytes: 8 << 20}, 1000, 1 << 20},
		{"a configured size is kept", ingest.Config{SharedBytes: 8 << 20, MaxBytes: 5 << 20}, 4, 5 << 20},
		{"32 MiB by default", ingest.Config{}, 1, 32 << 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			expect.Equal(t, "a block is full at bytes", tt.want, ingest.ShareOf(tt.cfg, tt.lanes))
		})
	}
}

func TestAStopFinishesTheInsertInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		paced(w, 2*time.Second)
		w.publish(message(rec("1")))
		_, stop := w.startIngester(t, ingest.Config{})
		time.Sleep(time.Second) // the insert is half done
		began := time.Now()
		expect.NoError(t, stop())
		expect.Equal(t, "stopping took", time.Second, time.Since(began))
		expect.Not(t, w.state.Done != 1 || w.state.Claim != nil, "position %+v: the block is not recorded as done", w.state)
	})
}
