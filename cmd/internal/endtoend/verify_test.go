package endtoend

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"sluice/cmd/internal/audit/rebuild"
	"sluice/cmd/internal/audit/verify"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
)

// verify runs sluice verify and returns its report. The exit status must be want.
func (s *stack) verify(want int, args ...string) verify.Report {
	s.t.Helper()
	out, log := s.printed(want, append([]string{"verify", "--json", "--nats", "nats://" + s.nats, "--clickhouse", "clickhouse://default@" + s.clickhouse + "/flow"}, args...)...)
	var r verify.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		s.t.Fatalf("%v in:\n%s%s", err, out, log)
	}
	expect.Not(s.t, r.OK != (want == 0), "exit %d, and the report says ok %v:\n%s%s", want, r.OK, out, log)
	return r
}

// eventuallyStored waits until the backlog is empty and n records are accepted. It reads the
// checkpoint first, because each verify is a process with many queries.
func (s *stack) eventuallyStored(n uint64) {
	s.t.Helper()
	js := s.jetStream()
	eventually(s.t, 30*time.Second, func() error {
		kv, err := js.KeyValue("flow_lanes")
		if err != nil {
			return err
		}
		entry, err := kv.Get("lane.0")
		if err != nil {
			return err
		}
		lane, err := js.StreamInfo("FLOW_0")
		if err != nil {
			return err
		}
		var p flow.LaneState
		if err := json.Unmarshal(entry.Value(), &p); err != nil || p.Done < lane.State.LastSeq {
			return fmt.Errorf("%v: stored to %d of %d", err, p.Done, lane.State.LastSeq)
		}
		return nil
	})
	eventually(s.t, 30*time.Second, func() error {
		if t := s.verify(0).Total(); t.Accepted != n || t.Waiting != 0 {
			return fmt.Errorf("%+v, want %d records accepted and none waiting", t, n)
		}
		return nil
	})
}

// findings returns the findings, as kind lane sequence:index id.
func findings(r verify.Report) []string {
	var all []string
	for _, f := range r.Findings {
		all = append(all, fmt.Sprintf("%s %d %d:%d %s", f.Kind, f.Lane, f.Sequence, f.Index, f.ID))
	}
	return all
}

// TestVerifyNamesWhatIsWrong breaks the table in every way, and fixes it again.
func TestVerifyNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.up()
	s.exec("SYSTEM STOP MERGES flow.records")
	for seq := range 200 {
		var batch []string
		for i := range 10 {
			batch = append(batch, fmt.Sprintf(`{"id":"%d-%d","valueType":"JOB","timestamp":%d,"value":{"retries":3}}`, seq+1, i, time.Now().UnixMilli()))
		}
		fatal.If(t, wantOK(s.post([]byte("["+strings.Join(batch, ",")+"]"))))
	}
	s.eventuallyStored(2000)
	s.exec("CREATE TABLE flow.saved AS flow.records")
	s.exec("INSERT INTO flow.saved SELECT * FROM flow.records")
	const sync = " SETTINGS mutations_sync = 2"
	columns := "own_id, incarnation, identity, source, key, record_type, value_type, intent, ts, received_at, stored_at, stream_seq, stream_idx, lane, retries, variables, custom_headers"
	// Views count inserted rows; the test changes only the table.
	s.exec("DETACH TABLE flow.counts_1m_mv")

	for _, tt := range []struct {
		name     string
		tamper   []string
		args     []string
		want     []string
		fix      []string
		sentence string
	}{
		{name: "two rows are deleted",
			tamper:   []string{"ALTER TABLE flow.records DELETE WHERE id IN ('7-3', '190-0')" + sync},
			want:     []string{"missing 0 7:3 7-3", "missing 0 190:0 190-0"},
			fix:      []string{"INSERT INTO flow.records SELECT * FROM flow.saved WHERE id IN ('7-3', '190-0')"},
			sentence: "2 accepted records are missing",
		},
		{name: "a row is there three times",
			tamper:   []string{"INSERT INTO flow.records SELECT * FROM flow.records WHERE id = '50-9'", "INSERT INTO flow.records SELECT * FROM flow.saved WHERE id = '50-9'"},
			want:     []string{"doubled 0 50:9 50-9", "doubled 0 50:9 50-9"},
			fix:      []string{"ALTER TABLE flow.records DELETE WHERE id = '50-9'" + sync, "INSERT INTO flow.records SELECT * FROM flow.saved WHERE id = '50-9'"},
			sentence: "2 rows are surplus",
		},
		{name: "a row is gone and another one doubled",
			tamper:   []string{"ALTER TABLE flow.records DELETE WHERE id = '8-1'" + sync, "INSERT INTO flow.records SELECT * FROM flow.saved WHERE id = '8-2'"},
			want:     []string{"doubled 0 8:2 8-2", "missing 0 8:1 8-1"},
			fix:      []string{"ALTER TABLE flow.records DELETE WHERE id = '8-2'" + sync, "INSERT INTO flow.records SELECT * FROM flow.saved WHERE id IN ('8-1', '8-2')"},
			sentence: "1 accepted records are missing",
		},
		{name: "a row of another id took the place of one",
			tamper:   []string{"INSERT INTO flow.records (" + columns + ") SELECT " + strings.Replace(columns, "own_id", "'evil'", 1) + " FROM flow.saved WHERE id = '9-9'", "ALTER TABLE flow.records DELETE WHERE id = '9-9'" + sync},
			want:     []string{"changed 0 9:9 evil"},
			fix:      []string{"ALTER TABLE flow.records DELETE WHERE id = 'evil'" + sync, "INSERT INTO flow.records SELECT * FROM flow.saved WHERE id = '9-9'"},
			sentence: "1 rows differ from the accepted records",
		},
		{name: "a column is changed",
			tamper:   []string{"ALTER TABLE flow.records UPDATE retries = 4 WHERE id = '10-5'" + sync},
			args:     []string{"--deep"},
			want:     []string{"changed 0 10:5 10-5"},
			fix:      []string{"ALTER TABLE flow.records UPDATE retries = 3 WHERE id = '10-5'" + sync},
			sentence: "1 rows differ from the accepted records",
		},
		{name: "a row of no record appears",
			tamper:   []string{"INSERT INTO flow.records (own_id, ts, received_at, stored_at, stream_seq, stream_idx, lane, incarnation) SELECT 'stray', now(), now(), now(), 11, 10, 0, max(incarnation) FROM flow.records"},
			want:     []string{"unknown 0 11:10 stray"},
			fix:      []string{"ALTER TABLE flow.records DELETE WHERE id = 'stray'" + sync},
			sentence: "1 rows are surplus",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, sql := range tt.tamper {
				s.change(sql)
			}
			expect.Equal(t, "findings", tt.want, findings(s.verify(1, tt.args...)))
			args := append([]string{"verify", "--data", s.data, "--nats", "nats://" + s.nats, "--clickhouse", "clickhouse://default@" + s.clickhouse + "/flow"}, tt.args...)
			if out := s.sluice(1, args...); !strings.Contains(out, tt.sentence) {
				t.Errorf("does not say %q:\n%s", tt.sentence, out)
			}
			for _, sql := range tt.fix {
				s.change(sql)
			}
			s.verify(0, "--deep")
		})
	}
	for _, tt := range []struct{ lane, seq, want string }{
		{"7", "1", "lane 7, which does not exist"},
		{"0", "999", "up to message 999, but the lane ends at 200"},
	} {
		t.Run(tt.want, func(t *testing.T) {
			s.exec("INSERT INTO flow.records (own_id, ts, received_at, stored_at, stream_seq, lane, incarnation) SELECT 'stray', now(), now(), now(), " + tt.seq + ", " + tt.lane + ", max(incarnation) FROM flow.records")
			if r := s.verify(1); !slices.ContainsFunc(r.Problems, func(p string) bool { return strings.Contains(p, tt.want) }) {
				t.Errorf("problems are %q, want one with %q", r.Problems, tt.want)
			}
			s.change("ALTER TABLE flow.records DELETE WHERE id = 'stray'" + sync)
		})
	}
	s.exec("ATTACH TABLE flow.counts_1m_mv")

	t.Run("many findings are counted and some are named", func(t *testing.T) {
		s.change("ALTER TABLE flow.records DELETE WHERE stream_seq BETWEEN 20 AND 150" + sync)
		r := s.verify(1, "--limit", "3")
		if got := r.Total(); got.Missing != 1310 || got.Stored != 690 || r.Found != 1310 || len(r.Findings) != 3 {
			t.Errorf("got %+v, %d found, %d named", got, r.Found, len(r.Findings))
		}
		s.exec("DETACH TABLE flow.counts_1m_mv")
		s.exec("INSERT INTO flow.records SELECT * FROM flow.saved WHERE stream_seq BETWEEN 20 AND 150")
		s.exec("ATTACH TABLE flow.counts_1m_mv")
		s.verify(0)
	})
	t.Run("counters that lack records are reported and fixed", func(t *testing.T) {
		s.exec("ALTER TABLE flow.counts_1m DELETE WHERE 1" + sync)
		r := s.verify(1)
		fatal.When(t, len(r.Problems) == 0 || !strings.Contains(r.Problems[0], "counts_1m"), "problems: %q", r.Problems)
		for _, p := range r.Problems {
			_, command, _ := strings.Cut(p, "Remedy: sluice ")
			s.sluice(0, append(strings.Fields(command), "--nats", "nats://"+s.nats, "--clickhouse", "clickhouse://default@"+s.clickhouse+"/flow")...)
		}
		s.verify(0)
	})
	t.Run("resent records are deduplicated, not missing, and named on request", func(t *testing.T) {
		// In another batch, which is another request.
		at, err := s.query("SELECT toUnixTimestamp64Milli(ts) FROM flow.records WHERE id = '1-0'")
		fatal.If(t, err)
		fatal.If(t, wantOK(s.post(fmt.Appendf(nil, `{"id":"1-0","valueType":"JOB","timestamp":%s,"value":{"retries":3}}`, at))))
		s.eventuallyStored(2001)
		s.eventuallyQuery(10*time.Second, "SELECT count() FROM flow.records", "2000")
		r := s.verify(0, "--repeats")
		if got := r.Total(); got.Repeated != 1 || got.Stored != 2000 {
			t.Errorf("got %+v, want 2000 stored and one repeated", got)
		}
		expect.Not(t, len(r.Repeats) != 1 || r.Repeats[0].Sequence != 201 || r.Repeats[0].ID != "1-0", "repeats are %+v, want record 1-0 of message 201", r.Repeats)
	})
	t.Run("the totals account for purged messages", func(t *testing.T) {
		s.purge(100)
		r := s.verify(0)
		got := r.Lanes[0]
		if diff := cmp.Diff(flow.Totals{Read: 1000, Stored: 1000}, got.Purged); diff != "" || got.First != 101 || got.Accepted != 1001 || got.Before != 1000 {
			t.Errorf("got %+v; purged (-want +got):\n%s", got, diff)
		}
		says := func(want string) {
			t.Helper()
			if r := s.verify(1); !slices.ContainsFunc(r.Problems, func(p string) bool { return strings.Contains(p, want) }) {
				t.Errorf("problems are %q, want one with %q", r.Problems, want)
			}
		}
		s.change("ALTER TABLE flow.records DELETE WHERE id IN ('60-1', '60-2')" + sync)
		says("of the purged messages of lane 0 before 101, but 1000 were stored: 2 are missing")
		s.exec("INSERT INTO flow.records SELECT * FROM flow.saved WHERE id IN ('60-1', '60-2', '50-5')")
		says("1 are surplus")
		expect.Equal(t, "findings", []string{"doubled 0 50:5 50-5"}, findings(s.verify(1)))
	})
	t.Run("an edited lane state is detected", func(t *testing.T) {
		s.change("ALTER TABLE flow.records DELETE WHERE id = '50-5'" + sync)
		s.exec("INSERT INTO flow.records SELECT * FROM flow.saved WHERE id = '50-5'")
		kv, err := s.jetStream().KeyValue("flow_lanes")
		fatal.If(t, err)
		for _, change := range []struct{ from, to, want string }{
			{`"stored":2000`, `"stored":2001`, "do not add up"},
			{`"read":2001,"stored":2001`, `"read":1,"stored":1`, "less than its messages"},
		} {
			entry, err := kv.Get("lane.0")
			fatal.If(t, err)
			forged := strings.Replace(string(entry.Value()), change.from, change.to, 1)
			if forged == string(entry.Value()) {
				t.Fatalf("no %s in %s", change.from, entry.Value())
			}
			if _, err := kv.Put("lane.0", []byte(forged)); err != nil {
				t.Fatal(err)
			}
			if r := s.verify(1); !slices.ContainsFunc(r.Problems, func(p string) bool { return strings.Contains(p, change.want) }) {
				t.Errorf("problems are %q, want one with %q", r.Problems, change.want)
			}
		}
	})
}

// change runs a statement on flow.records without merges, so that duplicate rows remain.
func (s *stack) change(sql string) {
	s.t.Helper()
	if strings.HasPrefix(sql, "ALTER") { // mutations need merges
		s.exec("SYSTEM START MERGES flow.records")
		defer s.exec("SYSTEM STOP MERGES flow.records")
	}
	s.exec(sql)
}

// TestVerifyAfterALaneWasRecreated: the table has rows of two incarnations of a lane with
// the same sequences, and each is accounted for.
func TestVerifyAfterALaneWasRecreated(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	_, _, api, ingester := s.apart()
	s.load("--records", "1000", "--batch", "100", "--seed", "1", "--connections", "1") // a message for each request
	s.eventuallyStored(1000)
	for _, p := range []*process{api, ingester} {
		if code := p.stop(); code != 0 {
			t.Fatalf("%s stopped with exit %d", p.name, code)
		}
	}
	fatal.If(t, s.jetStream().DeleteStream("FLOW_0"))
	api = s.startAPI()
	s.waitReady(api, s.ops)
	s.load("--records", "3000", "--batch", "250", "--seed", "2", "--connections", "1") // two messages more than before
	if r := s.verify(1); len(r.Problems) == 0 || !strings.Contains(r.Problems[0], "lane 0 was deleted and recreated") {
		t.Errorf("problems: %q", r.Problems)
	}
	s.startIngester()
	s.sluice(0, "lanes", "reset", "--lane", "0", "--last", "0", "--yes", "--nats", "nats://"+s.nats)
	s.eventuallyStored(3000)
	s.eventuallyQuery(10*time.Second, "SELECT count() FROM flow.records", "4000")
	s.verify(0, "--deep")
	if r := s.rebuild(0, "flow_rebuild"); r.Lanes[0].Rebuilt != 3000 {
		t.Errorf("rebuilt %d rows, want 3000", r.Lanes[0].Rebuilt)
	}
	s.eventuallyQuery(5*time.Second, "SELECT count() FROM flow_rebuild.records", "4000") // rows of the earlier incarnation are copied

	// Sequences that both incarnations have.
	id, err := s.query("SELECT id FROM flow.records WHERE stream_seq = 3 AND stream_idx = 7 AND incarnation = (SELECT max(incarnation) FROM flow.records)")
	fatal.If(t, err)
	s.exec("ALTER TABLE flow.records DELETE WHERE id = '" + id + "' SETTINGS mutations_sync = 2")
	expect.Equal(t, "findings", []string{"missing 0 3:7 " + id}, findings(s.verify(1)))
	if r := s.rebuild(1, "flow_rebuild"); len(r.Differences) != 1 || r.Differences[0].ID != id {
		t.Errorf("differences: %+v", r.Differences)
	}

	// Sequences that only the later one has.
	s.exec("SYSTEM STOP MERGES flow.records")
	s.exec("INSERT INTO flow.records (own_id, ts, received_at, stored_at, stream_seq, stream_idx, lane, incarnation) SELECT 'stray', now(), max(received_at), max(stored_at), 11, 250, 0, max(incarnation) FROM flow.records WHERE stream_seq = 11")
	expect.Equal(t, "findings", []string{"unknown 0 11:250 stray", "missing 0 3:7 " + id}, findings(s.verify(1)))
	if r := s.rebuild(1, "flow_rebuild"); !slices.ContainsFunc(r.Differences, func(d rebuild.Difference) bool { return d.ID == "stray" }) {
		t.Errorf("differences: %+v", r.Differences)
	}
	s.purge(11)
	s.exec("INSERT INTO flow.records SELECT * FROM flow.records WHERE stream_seq = 11 AND stream_idx = 250")
	expect.Equal(t, "findings", []string{"doubled 0 11:250 stray"}, findings(s.verify(1)))
}

// purge removes the messages of lane 0 up to a sequence, as the purger does.
func (s *stack) purge(last uint64) {
	s.t.Helper()
	fatal.If(s.t, s.jetStream().PurgeStream("FLOW_0", &nats.StreamPurgeRequest{Sequence: last + 1}))
}

// TestVerifyFollowsDeadLetters: dead, replayed and dropped records are counted as
// such.
func TestVerifyFollowsDeadLetters(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.up()
	at := "nats://" + s.nats
	s.exec("ALTER TABLE flow.records ADD CONSTRAINT not_poison CHECK error_message != 'poison'")
	for i := range 4 {
		body := fmt.Sprintf(`[{"id":"%d-0"},{"id":"%d-1","value":{"errorMessage":"poison"}}]`, i, i)
		fatal.If(t, wantOK(s.post([]byte(body))))
	}
	eventually(t, 20*time.Second, func() error {
		if n := len(s.letters()); n != 4 {
			return fmt.Errorf("%d dead letters, want 4", n)
		}
		return nil
	})
	account := func(want verify.Tally) {
		t.Helper()
		s.eventuallyStored(want.Accepted)
		expect.Equal(t, "account", want, s.verify(0, "--deep").Total())
	}
	account(verify.Tally{Accepted: 8, Stored: 4, Dead: 4})
	letters := s.letters()
	s.sluice(0, "dead", "drop", fmt.Sprint(letters[0].Number), "--yes", "--nats", at)
	account(verify.Tally{Accepted: 8, Stored: 4, Dead: 3, Dropped: 1})
	s.exec("ALTER TABLE flow.records DROP CONSTRAINT not_poison")
	s.sluice(0, "dead", "replay", fmt.Sprint(letters[1].Number), fmt.Sprint(letters[2].Number), "--nats", at)
	account(verify.Tally{Accepted: 10, Stored: 6, Dead: 1, Replayed: 2, Dropped: 1})

	// Stored by hand although dead-lettered: a replay would duplicate it.
	s.exec(fmt.Sprintf("INSERT INTO flow.records (own_id, ts, received_at, stored_at, stream_seq, stream_idx, lane, incarnation) SELECT 'by-hand', now(), now(), now(), %d, %d, 0, max(incarnation) FROM flow.records", letters[3].Sequence, letters[3].Index))
	r := s.verify(1)
	expect.Equal(t, "findings", []string{fmt.Sprintf("doubled 0 %d:1 by-hand", letters[3].Sequence)}, findings(r))
}
