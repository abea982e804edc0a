package endtoend

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/cmd/internal/audit/rebuild"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
)

// rebuild runs sluice rebuild and returns its report. The exit status must be want.
func (s *stack) rebuild(want int, into string) rebuild.Report {
	s.t.Helper()
	out, log := s.printed(want, s.rebuildArgs(into)...)
	var r rebuild.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.OK != (want == 0) || len(r.Lanes) == 0 {
		s.t.Fatalf("exit %d, and the report is %+v (%v):\n%s%s", want, r, err, out, log)
	}
	return r
}

func (s *stack) rebuildArgs(into string) []string {
	return []string{"rebuild", "--json", "--into", into, "--nats", "nats://" + s.nats, "--clickhouse", "clickhouse://default@" + s.clickhouse + "/flow"}
}

// TestRebuildMakesTheSameTables from lanes with dead letters, replays, drops and repeats, also after a kill. The
// rebuilt tables replace damaged ones.
func TestRebuildMakesTheSameTables(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	_, _, _, ingester := s.apart()
	at := "nats://" + s.nats
	s.publish(0, "garbage", nil)
	s.exec("ALTER TABLE flow.records ADD CONSTRAINT not_poison CHECK error_message != 'poison'")
	for i := range 3 {
		body := fmt.Sprintf(`[{"id":"p%d-0"},{"id":"p%d-1","value":{"errorMessage":"poison"}},{"id":"p%d-2","value":{"x":1,"rootProcessInstanceKey":7}}]`, i, i, i)
		fatal.If(t, wantOK(s.post([]byte(body))))
	}
	eventually(t, 60*time.Second, func() error {
		if n := len(s.letters()); n != 4 {
			return fmt.Errorf("%d dead letters, want 4", n)
		}
		return nil
	})
	s.exec("ALTER TABLE flow.records DROP CONSTRAINT not_poison")
	letters := s.letters("--code", "refused")
	s.sluice(0, "dead", "drop", fmt.Sprint(letters[0].Number), "--yes", "--nats", at)
	s.sluice(0, "dead", "replay", fmt.Sprint(letters[1].Number), "--nats", at)
	s.load("--records", "16000", "--batch", "100", "--connections", "1", "--seed", "1") // a message for each request
	if err := wantOK(s.post([]byte(`{"id":"p0-0"}`))); err != nil {                     // a repeat
		t.Fatal(err)
	}
	s.eventuallyStored(16012) // the garbage counts as one, the replay as another
	s.exec("OPTIMIZE TABLE flow.records FINAL")
	s.verify(0, "--deep")

	t.Run("after a kill", func(t *testing.T) {
		p := start(t, "sluice", s.rebuildArgs("flow_two")...)
		eventually(t, 30*time.Second, func() error { _, err := s.query("SELECT 1 FROM flow_two.records LIMIT 1"); return err })
		p.kill()
		r := s.rebuild(0, "flow_two")
		if r.Lanes[0].First != 1 || r.Lanes[0].Rebuilt != 16007 || r.Lanes[0].Differ != 0 {
			t.Errorf("got %+v", r.Lanes[0])
		}
		s.eventuallyQuery(5*time.Second, `SELECT (SELECT sum(records) FROM flow.counts_1m) = (SELECT sum(records) FROM flow_two.counts_1m),
			(SELECT count() FROM flow_two.records) - (SELECT uniqExact(lane, stream_seq, stream_idx) FROM flow_two.records)`, "1\t0")
		instances := "SELECT count() > 0, sum(cityHash64(toString((process_instance_key, version, started_at, completed_at, first_seen, last_seen, length(incident_keys), state)))) FROM %s.v_process_instances"
		want, err := s.query(fmt.Sprintf(instances, "flow"))
		fatal.When(t, err != nil || !strings.HasPrefix(want, "1\t"), "instances: %s, %v", want, err)
		s.eventuallyQuery(5*time.Second, fmt.Sprintf(instances, "flow_two"), want)
	})
	t.Run("the live database and an invalid name are rejected", func(t *testing.T) {
		s.sluice(1, s.rebuildArgs("flow")...)
		s.sluice(1, s.rebuildArgs("no such name")...)
	})
	t.Run("a damaged table is detected and replaced", func(t *testing.T) {
		id, err := s.query("SELECT id FROM flow.records WHERE stream_seq = 77 ORDER BY stream_idx LIMIT 1")
		fatal.If(t, err)
		s.exec("ALTER TABLE flow.records DELETE WHERE id = '" + id + "' SETTINGS mutations_sync = 2")
		s.exec("ALTER TABLE flow.records UPDATE error_message = 'forged' WHERE id = 'p2-2' SETTINGS mutations_sync = 2")
		r := s.rebuild(1, "flow_two")
		kinds := map[string]string{}
		for _, d := range r.Differences {
			kinds[d.ID+" "+d.Kind] = ""
		}
		for _, want := range []string{id + " missing", "p2-2 missing", "p2-2 not among the accepted records"} {
			if _, found := kinds[want]; !found {
				t.Errorf("does not name %q: %+v", want, r.Differences)
			}
		}
		if code := ingester.stop(); code != 0 {
			t.Fatalf("the ingester stopped with exit %d", code)
		}
		fatal.If(t, wantOK(s.post([]byte(`{"id":"while-stopped"}`))))
		for _, sql := range r.Swap {
			s.exec(sql)
		}
		ingester = s.startIngester()
		s.waitReady(ingester, s.ingesterOps)
		fatal.If(t, wantOK(s.post([]byte(`{"id":"afterwards"}`))))
		s.eventuallyStored(16014)
		s.verify(0, "--deep")
		s.eventuallyQuery(5*time.Second, "SELECT count() FROM flow.records WHERE id IN ('while-stopped', 'afterwards')", "2")
	})
}

// TestARepeatNeverOutlivesItsOriginal: originals are purged from the lane and only in the table; the lane has only
// their repeats. A record without an identity was repeated with its request.
func TestARepeatNeverOutlivesItsOriginal(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	_, _, _, ingester := s.apart()
	now := time.Now().UnixMilli()
	one := func(position int, more string) string {
		return fmt.Sprintf(`{"partitionId":1,"position":%d,"key":%d,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","timestamp":%d%s}`, position, position, now, more)
	}
	old := fmt.Sprintf(`{"id":"old","timestamp":%d}`, time.Now().AddDate(0, -3, 0).UnixMilli())
	for _, body := range []string{
		one(1, ""), one(2, ""), one(3, ""), old, `{"intent":"nameless"}`, // messages 1 to 5
		"[" + strings.Join([]string{one(2, `,"sequence":7`), one(3, `,"id":"1-3"`), old, one(4, "")}, ",") + "]", // message 6
		one(1, ""), one(4, `,"sequence":8`), // messages 7 and 8
	} {
		fatal.If(t, wantOK(s.post([]byte(body))))
		time.Sleep(20 * time.Millisecond) // a message each
	}
	nameless, err := s.jetStream().GetMsg("FLOW_0", 5) // as by an api that no longer has the request id
	fatal.If(t, err)
	nameless.Header.Del(nats.MsgIdHdr)
	s.publish(0, string(nameless.Data), nameless.Header)
	if err := wantOK(s.post([]byte(`{"intent":"once"}`))); err != nil { // may be a repeat, for all that the lane shows
		t.Fatal(err)
	}
	s.eventuallyStored(13)
	places := "SELECT groupArray((if(intent IN ('nameless', 'once'), intent, id), stream_seq)) FROM (SELECT id, intent, stream_seq FROM %s.records ORDER BY stream_seq)"
	want, err := s.query(fmt.Sprintf(places, "flow"))
	fatal.When(t, err != nil || want != "[('1-1',1),('1-2',2),('1-3',3),('old',4),('nameless',5),('1-4',6),('once',10)]", "stored: %s, %v", want, err)
	s.purge(5)
	if r := s.rebuild(0, "flow_rebuild"); r.Lanes[0].First != 6 || r.Lanes[0].Rebuilt != 2 {
		t.Errorf("got %+v, want two rows of message 6 on", r.Lanes[0])
	}
	r := s.rebuild(0, "flow_rebuild") // once more, to catch up
	s.eventuallyQuery(5*time.Second, fmt.Sprintf(places, "flow_rebuild"), want)
	s.eventuallyQuery(5*time.Second, "SELECT sum(records), (SELECT sum(rows) FROM flow_rebuild.sources) FROM flow_rebuild.counts_1m", "7\t7")

	// The rebuilt tables work in place of the old ones.
	if code := ingester.stop(); code != 0 {
		t.Fatalf("the ingester stopped with exit %d", code)
	}
	for _, sql := range r.Swap {
		s.exec(sql)
	}
	ingester = s.startIngester()
	s.waitReady(ingester, s.ingesterOps)
	fatal.If(t, wantOK(s.post([]byte("["+one(5, "")+","+one(2, `,"sequence":9`)+"]"))))
	s.eventuallyStored(10) // records in the lane
	if r := s.verify(0, "--deep"); r.Total().Repeated != 7 || r.Purged() != (flow.Totals{Read: 5, Stored: 5}) {
		t.Errorf("got %+v, purged %+v", r.Total(), r.Purged())
	}
}

// TestTablesThatWereSetBackAreRebuilt: the lane halts before it stores more, and sluice rebuild restores the lane's
// records. Rows that expired or were deleted earlier do not count as missing.
func TestTablesThatWereSetBackAreRebuilt(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	_, _, _, ingester := s.apart()
	stop := func() {
		if code := ingester.stop(); code != 0 {
			t.Fatalf("stopped with exit %d", code)
		}
	}
	send := func(key, body string) {
		fatal.If(t, wantOK(s.sendWith(http.Header{"Idempotency-Key": {key}}, http.MethodPost, "/flow/flowRecord/batch", []byte(body))))
	}
	bare := func() { send("k", `[{"key":1},{"key":2}]`) }
	s.load("--records", "1000", "--batch", "100", "--seed", "1", "--connections", "1")
	bare()
	s.eventuallyQuery(60*time.Second, "SELECT count() FROM flow.records", "1002")
	stop()
	for _, table := range []string{"records", "sources", "counts_1m"} {
		s.exec("TRUNCATE TABLE flow." + table)
	}
	ingester = s.startIngester()
	s.halted(ingester, "ClickHouse was set back", "1002 of the 1002 stored rows", "sluice rebuild")
	bare() // the log has the request
	stop()
	for _, sql := range s.rebuild(1, "flow_back").Swap {
		s.exec(sql)
	}
	ingester = s.startIngester()
	s.waitReady(ingester, s.ingesterOps)
	s.load("--records", "500", "--batch", "100", "--seed", "2")
	s.eventuallyQuery(60*time.Second, "SELECT count(), countIf(key IN (1, 2)), (SELECT sum(records) FROM flow.counts_1m) FROM flow.records", "1502\t2\t1502")
	s.verify(0, "--deep")

	// Rows are missing, as after a retention, before the rebuild.
	stop()
	s.exec("ALTER TABLE flow.records DELETE WHERE key IN (1, 2) SETTINGS mutations_sync = 2")
	r := s.rebuild(1, "flow_again")
	s.eventuallyQuery(time.Second, "SELECT (SELECT sum(rows) FROM flow_again.sources) >= (SELECT sum(rows) FROM flow.sources)", "1")
	expect.Not(t, len(r.Differences) != 2, "the rebuild names %+v, want two missing records", r.Differences)

	// The lane lacks messages that a request could repeat.
	ingester = s.startIngester()
	s.purge(3)
	send("l", `[{"key":3},{"key":4}]`)
	s.eventuallyQuery(60*time.Second, "SELECT count() FROM flow.records WHERE key IN (3, 4)", "2")
	stop()
	s.exec("ALTER TABLE flow.records DELETE WHERE key IN (3, 4) SETTINGS mutations_sync = 2")
	s.rebuild(1, "flow_lost")
	s.eventuallyQuery(time.Second, "SELECT count() FROM flow_lost.records WHERE key IN (3, 4)", "2")

	// A claim of messages from before a reset: its rows would be copied, and inserted again under tokens that the
	// rebuilt tables lack.
	kv, err := s.jetStream().KeyValue("flow_lanes")
	fatal.If(t, err)
	entry, err := kv.Get("lane.0")
	fatal.If(t, err)
	var state flow.LaneState
	fatal.If(t, json.Unmarshal(entry.Value(), &state))
	last := state.Done
	state = state.WithIncarnation(state.Incarnation()+1, last+1)
	state.Done, state.Claim = last-1, &flow.Claim{First: last, Last: last}
	value, err := json.Marshal(state)
	fatal.If(t, err)
	_, err = kv.Put("lane.0", value)
	fatal.If(t, err)
	if _, log := s.printed(1, s.rebuildArgs("flow_open")...); !strings.Contains(log, fmt.Sprintf("sluice lanes reset --lane 0 --last %d", last-1)) {
		t.Errorf("got %s, want that it names the reset which drops the claim", log)
	}
}

// TestMessagesFromBeforeAResetAreReplayed: a lane stored messages from before its reset, and ClickHouse is set back to
// before that.
func TestMessagesFromBeforeAResetAreReplayed(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	_, engine, _, ingester := s.apart()
	stop := func() { expect.Equal(t, "exit status of the ingester", 0, ingester.stop()) }
	send := func(key string) {
		fatal.If(t, wantOK(s.sendWith(http.Header{"Idempotency-Key": {key}}, http.MethodPost, "/flow/flowRecord/batch", fmt.Appendf(nil, `[{"key":%s},{"key":%[1]s,"id":"of %[1]s"}]`, key))))
	}
	stored := func(want string) {
		s.eventuallyQuery(60*time.Second, "SELECT arraySort(groupArray(key)) FROM flow.records", want)
	}
	send("1")
	stored("[1,1]")
	stop()
	send("2")
	engine.stop()
	kept, data := t.TempDir(), filepath.Join(s.data, "clickhouse")
	fatal.If(t, os.CopyFS(kept, os.DirFS(data)))
	engine = s.startEngine()
	info, err := s.jetStream().StreamInfo("FLOW_0")
	fatal.If(t, err)
	s.sluice(0, "lanes", "reset", "--lane", "0", "--last", fmt.Sprint(info.State.LastSeq), "--yes", "--nats", "nats://"+s.nats)
	ingester = s.startIngester()
	send("3")
	stored("[1,1,2,2,3,3]")
	stop()

	engine.stop()
	fatal.If(t, errors.Join(os.RemoveAll(data), os.CopyFS(data, os.DirFS(kept))))
	s.startEngine()
	stored("[1,1]")
	for _, sql := range s.rebuild(1, "flow_back").Swap {
		s.exec(sql)
	}
	ingester = s.startIngester()
	send("2") // a repeat
	send("4")
	stored("[1,1,2,2,3,3,4,4]")
	s.verify(0, "--deep")
}
