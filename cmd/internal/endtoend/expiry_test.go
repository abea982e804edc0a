package endtoend

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/pkg/fatal"
	"sluice/pkg/flow"
)

// daysAgo returns a UTC day, such as 2025-11-21.
func daysAgo(n int) string { return time.Now().UTC().AddDate(0, 0, -n).Format(time.DateOnly) }

// aged is an installation of ten days. Messages 1 to 3 of lane 0 were stored five days
// ago, yesterday, and today, with two, three and one records. The ingester is stopped
// while rows, counters, and totals are aged. first is a record of message 1.
func aged(t *testing.T) (s *stack, first string) {
	t.Helper()
	s = newStack(t)
	s.startNATS()
	s.startEngine()
	s.waitReady(s.startAPI(), s.ops)
	kv := s.positions()
	put := func(state flow.LaneState) {
		t.Helper()
		value, err := json.Marshal(state)
		fatal.If(t, err)
		if _, err := kv.Put("lane.0", value); err != nil {
			t.Fatal(err)
		}
	}
	put(flow.LaneState{Incarnations: []flow.Incarnation{{ID: uint64(time.Now().AddDate(0, 0, -10).UnixMilli()), First: 1}}})
	ingester := s.startIngester()
	s.waitReady(ingester, s.ingesterOps)
	for seq, n := range []int{2, 3, 1} {
		var batch []string
		at := time.Now()
		if seq == 0 { // a part of its own, which expires as a whole
			at = at.AddDate(0, 0, -40)
		}
		for i := range n {
			batch = append(batch, fmt.Sprintf(`{"id":"%d-%d","key":%[1]d%[2]d,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","timestamp":%[3]d,"value":{"retries":3}}`, seq+1, i, at.UnixMilli()))
		}
		if first == "" {
			first = batch[0]
		}
		fatal.If(t, wantOK(s.post([]byte("["+strings.Join(batch, ",")+"]"))))
		s.eventuallyQuery(20*time.Second, fmt.Sprintf("SELECT count() FROM flow.records WHERE stream_seq = %d", seq+1), fmt.Sprint(n))
	}
	s.eventuallyStored(6)
	s.verify(0, "--deep")
	if code := ingester.stop(); code != 0 {
		t.Fatalf("the ingester stopped with exit %d", code)
	}
	s.exec("ALTER TABLE flow.records UPDATE stored_at = stored_at - INTERVAL if(stream_seq = 1, 5, 1) DAY WHERE stream_seq < 3 SETTINGS mutations_sync = 2")
	s.exec("TRUNCATE TABLE flow.counts_1m")
	s.exec(`INSERT INTO flow.counts_1m (source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version, stored_day, records)
		SELECT source, toStartOfMinute(ts), tenant_id, value_type, record_type, intent, bpmn_process_id, ifNull(version, 0), toDate(stored_at), toInt64(count()) FROM flow.records GROUP BY ALL`)
	state := s.position(kv)
	state.StoredDays = []flow.StoredDay{{Day: daysAgo(5), Rows: 2, Last: 1}, {Day: daysAgo(1), Rows: 3, Last: 2}, {Day: daysAgo(0), Rows: 1, Last: 3}}
	put(state)
	s.waitReady(s.startIngester(), s.ingesterOps)
	s.verify(0, "--deep")
	return s, first
}

// keep sets the retention of records and counters.
func (s *stack) keep(days string) string {
	s.t.Helper()
	return s.sluice(0, "migrate", "ttl", "--keep-records", days, "--keep-counts", days,
		"--nats", "nats://"+s.nats, "--clickhouse", "clickhouse://default@"+s.clickhouse+"/flow")
}

// TestExpiredAndMissingNeverLookAlike: expired records are no fault, merged away or not,
// with purged messages or not, and after the retention was extended again. Missing
// records of a retained day are a fault, also after their messages were purged.
func TestExpiredAndMissingNeverLookAlike(t *testing.T) {
	t.Parallel()
	s, first := aged(t)
	kept := func(when string, purged uint64, rows string) {
		t.Helper()
		r := s.verify(0, "--deep")
		if r.Purged().Stored != purged || r.Total().Stored != 6-purged || len(r.Recount) > 0 {
			t.Errorf("%s: %d records by the totals, %d read, and a recount of %v is due", when, r.Purged().Stored, r.Total().Stored, r.Recount)
		}
		if got, err := s.query("SELECT count() FROM flow.records"); err != nil || got != rows {
			t.Errorf("%s: %s rows, %v, want %s", when, got, err, rows)
		}
	}
	s.exec("SYSTEM STOP TTL MERGES flow.records")
	s.exec("SYSTEM STOP TTL MERGES flow.counts_1m")
	kv := s.positions()
	state := s.position(kv)
	state.Recount = []flow.Doubt{{Day: daysAgo(40), Stored: daysAgo(5)}, {Day: daysAgo(0), Stored: daysAgo(1)}}
	value, err := json.Marshal(state)
	fatal.If(t, err)
	if _, err := kv.Update("lane.0", value, state.Revision); err != nil {
		t.Fatal(err)
	}
	s.keep("2d")
	if out := s.sluice(0, s.recountArgs()...); !strings.Contains(out, daysAgo(40)+": records stored on ") || !strings.Contains(out, daysAgo(0)+": the counters are correct") {
		t.Errorf("a day in doubt has expired, and recount says:\n%s", out)
	}
	kept("due, and not merged away", 2, "6")
	s.exec("SYSTEM START TTL MERGES flow.records")
	s.eventuallyQuery(time.Minute, "SELECT count() FROM flow.records WHERE stream_seq = 1", "0")
	kept("the rows are merged away, the counters are not", 2, "4")
	s.exec("SYSTEM START TTL MERGES flow.counts_1m")
	s.eventuallyQuery(time.Minute, "SELECT count() FROM flow.counts_1m WHERE stored_day < today() - 2", "0")
	kept("merged away", 2, "4")
	s.keep("400d")
	kept("and kept longer now", 2, "4")
	if r := s.rebuild(0, "flow_rebuild"); r.Lanes[0].First != 2 || r.Lanes[0].Rebuilt != 4 {
		t.Errorf("rebuilt %+v", r.Lanes[0])
	}
	s.eventuallyQuery(5*time.Second, "SELECT groupArray((d, n)) FROM (SELECT stored_day AS d, sum(records) AS n FROM flow_rebuild.counts_1m GROUP BY d ORDER BY d)",
		fmt.Sprintf("[('%s',3),('%s',1)]", daysAgo(1), daysAgo(0)))
	s.eventuallyQuery(5*time.Second, "SELECT uniqExact(key) FROM flow_rebuild.jobs", "6") // those of expired records too
	s.purge(2)
	kept("its messages are purged", 5, "4")

	// A resent expired record is a new record; after that it is deduplicated.
	for _, body := range []string{first, "[" + first + "]"} {
		fatal.If(t, wantOK(s.post([]byte(body))))
	}
	eventually(t, 20*time.Second, func() error {
		if r := s.verify(0, "--deep").Total(); r.Stored != 2 || r.Accepted < 2 || r.Waiting > 0 {
			return fmt.Errorf("%+v, want the last record and the first one stored", r)
		}
		return nil
	})
	if got, err := s.query("SELECT count(), countIf(id = '1-0') FROM flow.records"); err != nil || got != "5\t1" {
		t.Errorf("%s rows, %v, want 5, and one of them sent again", got, err)
	}

	// ClickHouse is set back: rows and counters are missing.
	s.exec("ALTER TABLE flow.records DELETE WHERE stream_seq = 2 SETTINGS mutations_sync = 2")
	s.exec("ALTER TABLE flow.counts_1m DELETE WHERE stored_day = '" + daysAgo(1) + "' SETTINGS mutations_sync = 2")
	r := s.verify(1)
	if !slices.ContainsFunc(r.Problems, func(p string) bool {
		return strings.Contains(p, "3 are missing; 0 of 3 stored on "+daysAgo(1)+" are left")
	}) {
		t.Errorf("problems: %q, want that 3 rows of %s are missing", r.Problems, daysAgo(1))
	}
}

// TestADueOriginalHidesNoRecord: an expired record that is not merged away yet is sent again and stored, here and by a
// rebuild that still finds its original, as after ClickHouse alone was restored.
func TestADueOriginalHidesNoRecord(t *testing.T) {
	t.Parallel()
	s, first := aged(t)
	s.rebuild(0, "flow_rebuild") // with the original
	for _, table := range []string{"flow.records", "flow_rebuild.records"} {
		s.exec("SYSTEM STOP TTL MERGES " + table)
	}
	s.keep("2d")
	for _, body := range []string{first, "[" + first + "]"} { // the second one is deduplicated
		fatal.If(t, wantOK(s.post([]byte(body))))
		s.eventuallyQuery(20*time.Second, "SELECT groupArray(stream_seq) FROM (SELECT stream_seq FROM flow.records WHERE id = '1-0' ORDER BY stream_seq)", "[1,4]")
	}
	s.eventuallyStored(6)
	s.verify(0, "--deep")
	s.exec("ALTER TABLE flow.records DELETE WHERE stream_seq > 2 SETTINGS mutations_sync = 2")
	if r := s.rebuild(1, "flow_rebuild"); r.Lanes[0].First != 1 || r.Lanes[0].Rebuilt != 5 || len(r.Differences) != 2 {
		t.Errorf("rebuilt %+v, want 5 rows, two of them missing in flow.records: %+v", r.Lanes[0], r.Differences)
	}
	s.eventuallyQuery(time.Second, "SELECT count() FROM flow_rebuild.records WHERE id = '1-0' AND stream_seq = 4", "1")
}
