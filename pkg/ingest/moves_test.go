package ingest_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
)

// routed is a request of a source, routed by a revision of its lane list.
func routed(source string, revision uint64, records ...string) flow.Message {
	m := posted(source, records...)
	m.Revision = revision
	return m
}

func marker(source string, revision uint64) flow.Message {
	return flow.Message{Topic: "flow.0.move", Source: source, Revision: revision, Received: time.Now()}
}

func together(messages ...flow.Message) flow.Entry {
	return flow.Entry{Topic: "flow.0.record", Messages: messages, Table: []byte(messages[0].Source)}
}

// moved has requests that land behind the move marker of their source, alone and among others in
// one entry. It also has a marker of an undone move behind a later one, and the requests that the
// sources resend.
func moved() (*world, outcome) {
	w := newWorld()
	nameless := routed("a", 1, `{"key":1}`)
	nameless.ID, nameless.Hash = "request", "hash"
	current := nameless
	current.Revision = 3
	w.publish(routed("a", 1, at(1, 1), at(1, 2)), routed("b", 1, at(1, 1)), marker("a", 2))
	w.publishEntry(together(routed("b", 1, at(1, 2)), routed("a", 1, at(1, 3), at(1, 4)), nameless, routed("a", 3, at(1, 5))))
	w.publish(routed("a", 1, at(1, 6), "[broken"), routed("a", 3, at(1, 3), at(1, 2)), marker("a", 4), marker("a", 2), marker("b", 2))
	w.publishEntry(together(routed("a", 3, at(1, 7)), routed("a", 5, at(1, 7)), current, routed("b", 1, at(1, 3)), routed("b", 2, at(1, 4))))
	current.Revision = 5
	w.publishEntry(together(current, current))
	rows := map[place]int{{1, 0}: 1, {1, 1}: 1, {2, 0}: 1, {4, 0}: 1, {4, 4}: 1, {6, 0}: 1, {10, 1}: 1, {10, 4}: 1, {11, 0}: 1}
	return w, outcome{
		Table: rows, View: rows, Dead: map[place]string{}, Bodies: map[place]string{}, Done: 11, LastRow: 11,
		Totals: flow.Totals{Read: 19, Stored: 9, Deduplicated: 2, Void: 8},
	}
}

// TestALateRequestTeachesNothing: a publish from before the move lands in the lane its source has
// left. The lane must not index the source by it: another lane stores the following requests until
// the source is back and resends.
func TestALateRequestTeachesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		_, stop := w.start(t, "a", small)
		w.publish(routed("a", 1, at(1, 1), at(1, 2)))
		time.Sleep(time.Second)
		w.publish(marker("a", 2))
		time.Sleep(time.Second)
		w.publish(routed("a", 1, at(1, 3))) // delayed in TCP for minutes
		time.Sleep(time.Second)
		w.mu.Lock()
		for n := range int64(2) { // positions 3 and 4, in another lane
			elsewhere := w.rows[1]
			elsewhere.Position, elsewhere.Key, elsewhere.TS, elsewhere.lane = 3+n, 3+n, elsewhere.TS+1+n, 5
			elsewhere.place = place{99, int(n)}
			w.rows, w.viewed = append(w.rows, elsewhere), append(w.viewed, elsewhere)
		}
		w.mu.Unlock()
		w.publish(routed("a", 5, at(1, 3), at(1, 4), at(1, 5))) // the source is back
		time.Sleep(time.Second)
		expect.NoError(t, stop())
		want := map[place]int{{1, 0}: 1, {1, 1}: 1, {4, 2}: 1}
		expect.Equal(t, "stored by this lane", want, w.table)
	})
}

// TestAMarkerInTheMiddle: messages behind it are deduplicated after all before it are stored, with
// nothing remembered of its source.
func TestAMarkerInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.publish(routed("a", 1, at(1, 1)), routed("a", 1, at(1, 2)), marker("a", 2), routed("a", 3, at(1, 2)), routed("a", 1, at(1, 3)), routed("a", 3, at(1, 4)))
		w.settle(t, ingest.Config{})
		expect.Equal(t, "stored", map[place]int{{1, 0}: 1, {2, 0}: 1, {6, 0}: 1}, w.table)
		for _, token := range w.inserts() {
			_, messages, _ := strings.Cut(token, ":")
			var first, last uint64
			if _, err := fmt.Sscanf(messages, "%d-%d", &first, &last); err != nil || first <= 3 && last > 3 {
				t.Errorf("%v: block %s has messages before and behind the marker", err, token)
			}
		}
		expect.Equal(t, "moves in the lane state", []flow.Move{{Source: "a", Revision: 2, Seq: 3}}, w.state.Moves)
	})
}

// TestARequestThatKnewOfAMarkerIsStored: the lists were set back and then raised again. A request by
// the old list whose api had seen the lane's end behind the marker is acknowledged.
func TestARequestThatKnewOfAMarkerIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.publish(routed("a", 1, at(1, 1)), marker("a", 3))
		for n, logEnd := range []uint64{1, 2} {
			e := together(routed("a", 2, at(1, 2+n)))
			e.LogEnd, e.Patience = logEnd, time.Minute
			w.publishEntry(e)
		}
		w.settle(t, ingest.Config{})
		expect.Equal(t, "stored", map[place]int{{1, 0}: 1, {4, 0}: 1}, w.table)
		expect.Equal(t, "void", 1, w.state.Totals.Void)
	})
}

// TestAListThatWasSetBackHalts: its apis answer OK for requests that are void behind a marker.
func TestAListThatWasSetBackHalts(t *testing.T) {
	for name, later := range map[string][]flow.Message{
		"when the marker is read":       nil,
		"when a request is void by one": {routed("a", 1, at(1, 2))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.publish(routed("a", 1, at(1, 1)))
				if later != nil {
					w.publish(marker("a", 3))
				} else {
					later = []flow.Message{marker("a", 3)}
				}
				w.run(t, ingest.Config{}, time.Minute)
				w.revision = 2
				w.publish(later...)
				done := uint64(len(w.messages) - 1)
				i, stop := w.startIngester(t, ingest.Config{})
				time.Sleep(time.Minute)
				if err := i.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "was set back") {
					t.Errorf("Check: got %v, want that the list was set back", err)
				}
				if w.done() != done {
					t.Errorf("the lane is at %d, want %d", w.done(), done)
				}
				w.mu.Lock()
				w.revision = 3
				w.mu.Unlock()
				time.Sleep(time.Minute)
				expect.NoError(t, stop())
				if w.done() != done+1 {
					t.Errorf("with the list restored the lane is at %d, want %d", w.done(), done+1)
				}
			})
		})
	}
}

// TestTicksAgeRequests: in a lane without other messages ticks shrink the deduplication window,
// and change nothing else.
func TestTicksAgeRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.publishEntry(entryOf(0, 0, asked("a", 0, 2)))
		for n := range 22 {
			e := flow.Entry{Topic: "flow.0.tick", Stored: begun.Add(time.Hour + time.Duration(n)*time.Minute)}
			e.Messages = []flow.Message{{Topic: e.Topic, Received: e.Stored}}
			w.publishEntry(e)
			finish(t, w, ingest.Config{Owner: "a"})
			if last := n == 21; (w.state.DedupFrom > 1) != last && n != 20 {
				t.Errorf("after %d ticks requests are kept from message %d on", n+1, w.state.DedupFrom)
			}
		}
		if diff := cmp.Diff(flow.Totals{Read: 2, Stored: 2}, w.state.Totals); diff != "" || len(w.dead) > 0 {
			t.Errorf("dead letters %v, totals (-want +got):\n%s", w.dead, diff)
		}
	})
}
