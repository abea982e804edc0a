package ingest_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
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

func posted(source string, records ...string) flow.Message {
	m := message(records...)
	m.Source = source
	return m
}

// at is a record of a position, with further fields.
func at(partition, position int, more ...string) string {
	return fmt.Sprintf(`{"partitionId":%d,"position":%d,"timestamp":%d,"key":%d,"valueType":"JOB","intent":"CREATED"%s}`,
		partition, position, 946684800000+position%7, position, strings.Join(more, ""))
}

func replayed(origin, before string, records ...string) flow.Message {
	m := posted("a", records...)
	m.ID = flow.ReplayID(origin, before)
	return m
}

const noon = 946728000000 // of 2000-01-01, the day of these tests

func TestWhichRecordsAreTheSame(t *testing.T) {
	id := func(id string, more string) string { return fmt.Sprintf(`{"id":%q,"timestamp":%d%s}`, id, noon, more) }
	tests := []struct {
		name     string
		messages []flow.Message
		stored   []place
	}{
		{"an overlap with other boundaries", []flow.Message{
			posted("a", at(1, 1), at(1, 2), at(1, 3)), posted("a", at(1, 2)), posted("a", at(1, 3), at(1, 4), at(1, 5)), posted("a", at(1, 1), at(1, 5), at(1, 6)),
		}, []place{{1, 0}, {1, 1}, {1, 2}, {3, 1}, {3, 2}, {4, 2}}},
		{"twice in one request", []flow.Message{posted("a", at(1, 1), at(1, 2), at(1, 1), id("x", ""), id("x", ""))}, []place{{1, 0}, {1, 1}, {1, 3}}},
		{"with and without the id that follows from the position", []flow.Message{
			posted("a", at(1, 1, `,"id":"1-1"`)), posted("a", at(1, 1)), posted("a", at(2, 1)), posted("a", at(2, 1, `,"id":"2-1"`)),
		}, []place{{1, 0}, {3, 0}}},
		{"an id of its own, and none", []flow.Message{posted("a", at(1, 1, `,"id":"x"`)), posted("a", at(1, 1)), posted("a", at(1, 1, `,"id":"x"`))}, []place{{1, 0}}},
		{"two ids of one position", []flow.Message{posted("a", at(1, 1, `,"id":"x"`)), posted("a", at(1, 1, `,"id":"y"`))}, []place{{1, 0}, {2, 0}}},
		{"what may differ: sequence and the like", []flow.Message{posted("a", at(1, 1, `,"sequence":7`)), posted("a", at(1, 1, `,"sequence":8,"authorizations":{}`))}, []place{{1, 0}}},
		{"two sources", []flow.Message{posted("a", at(1, 1), id("x", "")), posted("b", at(1, 1), id("x", "")), posted("a", at(1, 1), id("x", ""))}, []place{{1, 0}, {1, 1}, {2, 0}, {2, 1}}},
		{"two partitions", []flow.Message{posted("a", at(1, 1)), posted("a", at(2, 1))}, []place{{1, 0}, {2, 0}}},
		{"an engine that is reset", []flow.Message{
			posted("a", at(1, 1), at(1, 2)),
			posted("a", `{"partitionId":1,"position":1,"timestamp":946684900000,"key":1,"valueType":"JOB","intent":"CREATED"}`, at(1, 2)),
		}, []place{{1, 0}, {1, 1}, {2, 0}}},
		{"the same position with another intent, key or type", []flow.Message{
			posted("a", at(1, 1)),
			posted("a", strings.Replace(at(1, 1), "CREATED", "COMPLETED", 1), strings.Replace(at(1, 1), `"key":1`, `"key":2`, 1), strings.Replace(at(1, 1), "JOB", "TIMER", 1)),
			posted("a", strings.Replace(at(1, 1), "CREATED", "COMPLETED", 1)),
		}, []place{{1, 0}, {2, 0}, {2, 1}, {2, 2}}},
		{"an id with the same content, members in another order", []flow.Message{
			posted("a", id("x", `,"value":{"a":1,"b":[1,2]}`)), posted("a", fmt.Sprintf(`{ "value" : {"b":[1,2],"a":1}, "timestamp":%d, "id":"x"}`, noon)),
		}, []place{{1, 0}}},
		{"an id with other content", []flow.Message{posted("a", id("x", `,"intent":"A"`)), posted("a", id("x", `,"intent":"B"`))}, []place{{1, 0}, {2, 0}}},
		{"an id without a timestamp", []flow.Message{posted("a", `{"id":"job-7","intent":"CREATED"}`), posted("a", `{"id":"job-7","intent":"COMPLETED"}`), posted("a", `{"id":"job-7","intent":"CREATED"}`)}, []place{{1, 0}, {2, 0}}},
		{"neither id nor position: as many as were sent", []flow.Message{posted("a", `{"key":5}`, `{"key":5}`), posted("a", `{"key":5}`)}, []place{{1, 0}, {1, 1}, {2, 0}}},
		{"placeholders are no identity", []flow.Message{
			posted("a", `{"partitionId":1,"position":0,"timestamp":946684800001}`, `{"partitionId":1,"position":-1,"timestamp":946684800001}`,
				`{"partitionId":0,"position":3,"timestamp":946684800001}`, `{"partitionId":1,"position":3}`, `{"partitionId":1,"position":3,"timestamp":5}`),
			posted("a", `{"partitionId":1,"position":0,"timestamp":946684800001}`, `{"partitionId":1,"position":-1,"timestamp":946684800001}`,
				`{"partitionId":0,"position":3,"timestamp":946684800001}`, `{"partitionId":1,"position":3}`, `{"partitionId":1,"position":3,"timestamp":5}`),
		}, []place{{1, 0}, {1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 0}, {2, 1}, {2, 2}, {2, 3}, {2, 4}}},
		{"a dead letter that is replayed twice", []flow.Message{
			posted("a", `{"key":5}`), replayed("0.1763704800017.9.2", "", `{"key":5}`), replayed("0.1763704800017.9.2", "", `{"key":5}`), replayed("0.1763704800017.9.3", "", `{"key":5}`),
			replayed("0.1763704800018.4.0", flow.ReplayID("0.1763704800017.9.2", ""), `{"key":5}`), // dead-lettered and replayed a second time
		}, []place{{1, 0}, {2, 0}, {4, 0}}},
		{"a whole message that is replayed twice", []flow.Message{
			replayed("0.1763704800017.9.-1", "", `{"key":5}`, `{"key":5}`), replayed("0.1763704800017.9.-1", "", `{"key":5}`, `{"key":5}`), replayed("0.1763704800017.9.-2", "", `{"key":5}`),
			replayed("0.1763704800018.4.1", flow.ReplayID("0.1763704800017.9.-1", ""), `{"key":5}`),
		}, []place{{1, 0}, {1, 1}, {3, 0}, {4, 0}}},
		{"letters that never were in a lane", []flow.Message{replayed("-1.3.4.0", "", `{"key":5}`), replayed("-1.3.4.0", "", `{"key":5}`)}, []place{{1, 0}, {2, 0}}},
		{"a partition that no engine has", []flow.Message{
			posted("a", `{"id":"x","partitionId":8192,"position":3,"timestamp":946684800001}`), posted("a", `{"id":"x","partitionId":8192,"position":3,"timestamp":946684800001}`),
		}, []place{{1, 0}}},
		{"a timestamp ahead of every clock", []flow.Message{
			posted("a", `{"id":"x","partitionId":1,"position":3,"timestamp":4102444799999}`), posted("a", `{"partitionId":1,"position":3,"timestamp":4102444799999}`),
		}, []place{{1, 0}}},
		{"an absurd position", []flow.Message{
			posted("a", at(1, 5)), posted("a", at(1, 9223372036854775807)), posted("a", at(1, 6), at(1, 5), at(1, 9223372036854775807), at(1, 7)), posted("b", at(1, 5)),
		}, []place{{1, 0}, {2, 0}, {3, 0}, {3, 3}, {4, 0}}},
		{"months later", []flow.Message{
			posted("a", at(1, 1), id("x", "")), posted("a", `{"partitionId":1,"position":900,"timestamp":949000000000}`, `{"id":"y","timestamp":949000000000}`), posted("a", at(1, 1), id("x", "")),
		}, []place{{1, 0}, {1, 1}, {2, 0}, {2, 1}}},
	}
	for _, tt := range tests {
		for _, how := range []string{"one block each", "one block for all", "a restart before each"} {
			t.Run(tt.name+", "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld()
					for _, m := range tt.messages {
						w.publish(m)
						if how == "one block for all" {
							continue
						}
						if how == "a restart before each" || len(w.messages) == len(tt.messages) {
							w.run(t, ingest.Config{MaxRows: 1}, time.Minute)
						}
					}
					w.run(t, ingest.Config{}, time.Minute)
					want := map[place]int{}
					for _, p := range tt.stored {
						want[p] = 1
					}
					expect.Equal(t, "stored", want, w.table)
					sent := uint64(0)
					for _, m := range tt.messages {
						sent += uint64(m.Records)
					}
					expect.Equal(t, "the totals", (flow.Totals{Read: sent, Stored: uint64(len(want)), Deduplicated: sent - uint64(len(want))}), w.state.Totals)
				})
			})
		}
	}
}

// sentAgain is a scene in which most records are resent in other chunks, with changes, bad records
// and rejected ones among them.
func sentAgain() (*world, outcome) {
	w := newWorld()
	w.refuse = func(c *record.Columns, i int) bool { return bytes.HasPrefix([]byte(c.ID(i)), []byte("poison")) }
	id := func(n int) string { return fmt.Sprintf(`{"id":"x-%d","timestamp":%d}`, n, noon+n) }
	poison := fmt.Sprintf(`{"id":"poison","timestamp":%d}`, noon)
	timeless := `{"id":"job-7","intent":"CREATED"}`
	w.publish(
		posted("a", at(1, 1), at(1, 2), at(1, 3), id(1)),
		posted("a", at(1, 2), at(1, 3), at(1, 4), id(1), id(2), id(2)),
		posted("b", at(1, 1), id(1), timeless),
		flow.Message{Topic: "flow.0.change.user.YQ", Received: time.Now(), Body: []byte("{}")},
		posted("a", at(1, 3), poison, at(1, 5), at(1, 4), at(1, 6), `{"key":1}`, `{"key":1}`),
		posted("b", at(1, 1), timeless, at(1, 2), id(1), `"no record"`),
		flow.Message{Topic: "flow.0.move", Source: "a", Received: time.Now()},
		posted("a", at(1, 6), at(1, 7), poison, id(2), id(3)),
		posted("a", at(1, 1), at(1, 2), at(1, 3), at(1, 4), at(1, 5), at(1, 6), at(1, 7)),
		posted("a", at(2, 1), at(2, 1), at(1, 8)),
	)
	rows := map[place]int{}
	for seq, indexes := range map[uint64][]int{1: {0, 1, 2, 3}, 2: {2, 4}, 3: {0, 1, 2}, 5: {2, 4, 5, 6}, 6: {2}, 8: {1, 4}, 10: {0, 2}} {
		for _, i := range indexes {
			rows[place{seq, i}] = 1
		}
	}
	return w, outcome{
		Table: rows, View: rows,
		Dead:    map[place]string{{5, 1}: "refused", {6, 4}: "not_an_object", {8, 2}: "refused"},
		Bodies:  map[place]string{{5, 1}: poison, {6, 4}: `"no record"`, {8, 2}: poison},
		Changes: []uint64{4}, Applied: 4, Written: map[uint64]bool{4: true}, Done: 10, LastRow: 10,
		Totals: flow.Totals{Read: 40, Stored: 18, Deduplicated: 19, DeadLettered: 3},
	}
}

// TestNewRecordsAreNotAskedFor: in order or interleaved over connections, with positions or with
// ids alone.
func TestNewRecordsAreNotAskedFor(t *testing.T) {
	for _, tt := range []struct {
		name   string
		record func(n int) string
	}{
		{"positions", func(n int) string { return at(1+n%3, 1000+2*n) }},
		{"ids", func(n int) string { return fmt.Sprintf(`{"id":"x-%d","timestamp":%d}`, n, noon+n/100) }},
		{"ids without a timestamp", func(n int) string { return fmt.Sprintf(`{"id":"x-%d"}`, n) }},
		{"neither", func(n int) string { return fmt.Sprintf(`{"key":%d}`, n) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				const messages, perMessage = 300, 50
				var all []flow.Message
				for m := range messages {
					var records []string
					for i := range perMessage {
						records = append(records, tt.record(m*perMessage+i))
					}
					all = append(all, posted("a", records...))
				}
				r := rand.New(rand.NewPCG(1, 1))
				for from := 0; from < messages; from += 16 { // sixteen connections
					some := all[from:min(from+16, messages)]
					r.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
				}
				w.publish(all...)
				w.run(t, ingest.Config{MaxRows: 1000}, time.Minute)
				fatal.When(t, len(w.table) != messages*perMessage, "%d rows of %d", len(w.table), messages*perMessage)
				for _, line := range w.history {
					expect.Not(t, strings.Contains(line, " known of "), "asked: %s", line)
				}
				if n := len(w.ops("marks of")) - len(w.ops("marks of 0:")); n > 1 { // when the days of the first block are new
					t.Errorf("%d queries for the progress of sources, want at most 1", n)
				}
			})
		})
	}
}

// ops are the steps so far that have this prefix.
func (w *world) ops(name string) (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, line := range w.history {
		if strings.Contains(line, " "+name) {
			all = append(all, line)
		}
	}
	return all
}

// TestLittleMemoryOnlyAsksMore: at any bound the same rows are stored.
func TestLittleMemoryOnlyAsksMore(t *testing.T) {
	for _, bytes := range []int{1, 20_000, 32 << 20} {
		t.Run(fmt.Sprint(bytes, " bytes"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				r := rand.New(rand.NewPCG(3, 3))
				distinct := map[string]bool{}
				for range 60 {
					var records []string
					for range 40 {
						one := at(1+r.IntN(3), 1+r.IntN(100_000)*r.IntN(2)*100+r.IntN(700))
						if r.IntN(3) == 0 {
							n := r.IntN(1000)
							one = fmt.Sprintf(`{"id":"x-%d","timestamp":%d}`, n, noon+n)
						}
						distinct[one] = true
						records = append(records, one)
					}
					w.publish(posted("a", records...))
				}
				w.run(t, ingest.Config{MaxRows: 100, KnownBytes: bytes}, time.Minute)
				expect.Not(t, len(w.rows) != len(distinct) || len(w.table) != len(distinct), "%d rows of %d distinct records", len(w.rows), len(distinct))
			})
		})
	}
}

// TestAMoveMarkerForgetsItsSource: behind it, other lanes may have stored records of the source.
func TestAMoveMarkerForgetsItsSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		_, stop := w.start(t, "a", small)
		w.publish(posted("a", at(1, 1), at(1, 2)))
		time.Sleep(time.Second)
		w.publish(flow.Message{Topic: "flow.0.move", Source: "a", Received: time.Now()})
		time.Sleep(time.Second)
		w.mu.Lock()
		elsewhere := w.rows[1] // position 3, stored by another lane
		elsewhere.Position, elsewhere.Key, elsewhere.TS, elsewhere.lane = 3, 3, elsewhere.TS+1, 5
		elsewhere.place = place{99, 0}
		w.rows, w.viewed = append(w.rows, elsewhere), append(w.viewed, elsewhere)
		w.mu.Unlock()
		w.publish(posted("a", at(1, 3), at(1, 4))) // the source has moved back
		time.Sleep(time.Second)
		expect.NoError(t, stop())
		want := map[place]int{{1, 0}: 1, {1, 1}: 1, {3, 1}: 1}
		expect.Equal(t, "stored by this lane", want, w.table)
	})
}

// TestTablesThatLackRowsHaltTheLane. Without rows in flow.sources, stored records would count as
// new. Without rows in all tables, a resent request that the log remembers would be dropped. Once
// the rows are restored the lane resumes, and each record is stored once.
func TestTablesThatLackRowsHaltTheLane(t *testing.T) {
	const sources, back = "flow.sources is missing rows", "ClickHouse was set back"
	for _, tt := range []struct {
		name string
		lose func(w *world)
		want string
	}{
		{"all of flow.sources", func(w *world) { w.viewed = nil }, sources},
		{"the days of one source", func(w *world) {
			w.viewed = slices.DeleteFunc(w.viewed, func(r row) bool { return r.Source == "b" })
		}, sources},
		{"all of it, and the records too", func(w *world) { w.viewed, w.rows, w.table = nil, nil, map[place]int{} }, back},
		{"an earlier state of both", func(w *world) {
			w.viewed, w.rows, w.table = w.viewed[:2:2], w.rows[:2:2], map[place]int{{1, 0}: 1, {1, 1}: 1}
		}, back},
	} {
		for _, running := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, while it runs: %v", tt.name, running), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld()
					w.publish(posted("a", at(1, 1), at(1, 2)), posted("b", at(1, 1)), posted("a", at(1, 3)))
					w.publishEntry(entryOf(0, 0, asked("a", 0, 1)))
					i, stop := w.startIngester(t, small)
					time.Sleep(time.Second)
					if !running {
						stop()
					}
					w.mu.Lock()
					viewed, rows, table := slices.Clone(w.viewed), w.rows, maps.Clone(w.table)
					tt.lose(w)
					w.mu.Unlock()
					if !running {
						i, stop = w.startIngester(t, small)
					}
					// No new day, and a request that the log remembers.
					w.publish(posted("a", at(1, 4)), posted("b", at(1, 1)))
					w.publishEntry(entryOf(time.Second, 0, asked("a", 0, 1)))
					time.Sleep(time.Minute)
					if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
						t.Errorf("Check: got %v, want halted: %s", err, tt.want)
					}
					w.mu.Lock()
					if len(w.rows) > len(rows) || w.state.Done != 4 {
						t.Errorf("%d rows, done %d: the lane continued", len(w.rows), w.state.Done)
					}
					w.viewed, w.rows, w.table = viewed, rows, table // sluice rebuild
					w.mu.Unlock()
					time.Sleep(time.Minute)
					expect.NoError(t, stop())
					want := map[place]int{{1, 0}: 1, {1, 1}: 1, {2, 0}: 1, {3, 0}: 1, {4, 0}: 1, {5, 0}: 1}
					if diff := cmp.Diff(want, w.table); diff != "" || w.state.Done != 7 {
						t.Errorf("done %d, stored (-want +got):\n%s", w.state.Done, diff)
					}
				})
			})
		}
	}
}
