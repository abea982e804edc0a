package endtoend

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
)

func (s *stack) recountArgs(args ...string) []string {
	return append([]string{"recount", "--nats", "nats://" + s.nats, "--clickhouse", "clickhouse://default@" + s.clickhouse + "/flow"}, args...)
}

// positions is the bucket of lane states, bypassing Sluice.
func (s *stack) positions() nats.KeyValue {
	s.t.Helper()
	kv, err := s.jetStream().KeyValue("flow_lanes")
	fatal.If(s.t, err)
	return kv
}

func (s *stack) position(kv nats.KeyValue) (p flow.LaneState) {
	s.t.Helper()
	entry, err := kv.Get("lane.0")
	fatal.If(s.t, err)
	fatal.If(s.t, json.Unmarshal(entry.Value(), &p))
	p.Revision = entry.Revision()
	return p
}

// TestRecountWhileRecordsFlow: recount fixes broken counters while records arrive.
func TestRecountWhileRecordsFlow(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.up()
	const seconds, rate = 16, 1000
	loaded := s.loading("--records", fmt.Sprint(seconds*rate), "--rate", fmt.Sprint(rate), "--batch", "20", "--seed", "1")
	s.eventuallyQuery(20*time.Second, "SELECT count() > 2000 FROM flow.records", "1")
	day, err := s.query("SELECT toDate(min(ts)) FROM flow.records")
	fatal.If(t, err)
	kv := s.positions()

	breakCounters := func(more, less int) { // different numbers each time, because ClickHouse drops an equal insert
		s.exec(fmt.Sprintf("INSERT INTO flow.counts_1m SELECT * REPLACE (%d AS records) FROM flow.counts_1m WHERE value_type = 'JOB' ORDER BY ALL LIMIT 1", more))
		s.exec(fmt.Sprintf("INSERT INTO flow.counts_1m SELECT * REPLACE (-%d AS records) FROM flow.counts_1m WHERE value_type = 'PROCESS_INSTANCE' ORDER BY ALL LIMIT 1", less))
	}
	breakCounters(5, 100_000)
	if r := s.verify(1, "--wait", "60s"); !slices.Equal(r.Recount, []string{day}) {
		t.Errorf("a recount of %q is due, want %s", r.Recount, day)
	}
	out := s.sluice(0, s.recountArgs(day)...)
	expect.Not(t, !strings.Contains(out, "100000 records were missing in the counters and 5 were surplus; fixed"), "recount says:\n%s", out)
	s.verify(0)

	loaded()
	s.eventuallyStored(seconds * rate)
	s.eventuallyQuery(5*time.Second, "SELECT (SELECT sum(records) FROM flow.counts_1m), (SELECT count() FROM flow.records)", fmt.Sprintf("%d\t%d", seconds*rate, seconds*rate))

	t.Run("days that an ingester has marked are due", func(t *testing.T) {
		p := s.position(kv)
		today := time.Now().UTC().Format(time.DateOnly)
		p.Recount = []flow.Doubt{{Day: "2025-01-31", Stored: today}, {Day: day, Stored: today}}
		marked, err := json.Marshal(p)
		fatal.If(t, err)
		if _, err := kv.Update("lane.0", marked, p.Revision); err != nil {
			t.Fatal(err)
		}
		if r := s.verify(0); !slices.Equal(r.Recount, []string{"2025-01-31", day}) {
			t.Errorf("a recount of %q is due, want both days", r.Recount)
		}
		s.sluice(0, s.recountArgs("--dry", day)...)
		if r := s.verify(0); !slices.Equal(r.Recount, []string{"2025-01-31"}) {
			t.Errorf("a recount of %q is due, want the other day alone", r.Recount)
		}
		s.sluice(0, s.recountArgs()...)
		if r := s.verify(0); len(r.Recount) > 0 || s.position(kv).Hold != nil {
			t.Errorf("a recount of %q is due, and the position is %+v", r.Recount, s.position(kv))
		}
		if out := s.sluice(0, s.recountArgs()...); !strings.Contains(out, "no recount is due") {
			t.Errorf("recount says:\n%s", out)
		}
		s.sluice(1, s.recountArgs("yesterday")...)
	})
}
