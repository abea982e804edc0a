package warehouse_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

// storedOn is a block of n records with timestamp ts, stored at another time.
func storedOn(t *testing.T, seq uint64, at, ts time.Time, n int) record.Block {
	t.Helper()
	var records []string
	for i := range n {
		records = append(records, fmt.Sprintf(`{"partitionId":1,"position":%d,"key":%d,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","timestamp":%d,
			"value":{"bpmnProcessId":"order","processInstanceKey":"7"}}`, int(seq)*1000+i, int(seq)*1000+i, ts.UnixMilli()))
	}
	m := flow.Message{Seq: seq, Topic: "flow.0.record", Received: received, Body: []byte("[" + strings.Join(records, ",") + "]")}
	c := new(record.Columns)
	fatal.If(t, c.Append(&m))
	return record.Block{Columns: c, To: c.Rows(), Token: fmt.Sprintf("FLOW_0@1:%d-%d:0", seq, seq), StoredAt: at.UnixMilli()}
}

// TestRetentionCountsFromStoredAt shortens the retention: a day stored earlier expires whole, and
// no other rows do, though their timestamps are equal.
func TestRetentionCountsFromStoredAt(t *testing.T) {
	t.Parallel()
	db := open(t)
	now := time.Now()
	for seq, days := range []int{100, 20, 0} {
		fatal.If(t, db.Insert(t.Context(), storedOn(t, uint64(seq)+1, now.AddDate(0, 0, -days), now, 10)))
	}
	for _, r := range []warehouse.Retention{{"records", 30}, {"counts_1m", 60}, {"changes", 0}} {
		fatal.If(t, db.Retain(t.Context(), r))
	}
	got, err := db.Retentions(t.Context())
	if diff := cmp.Diff([]warehouse.Retention{{"records", 30}, {"counts_1m", 60}, {"changes", 0}, {"instances", 0}}, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	const rows = "SELECT groupArray(n) FROM (SELECT stream_seq, count() AS n FROM {db}.records GROUP BY stream_seq ORDER BY stream_seq)"
	for deadline := time.Now().Add(time.Minute); query(t, db, rows) != "[10,10]"; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("rows of the messages that are kept: %s", query(t, db, rows))
		}
	}
	if err := db.Check(t.Context()); err != nil {
		t.Errorf("Check fails: %v", err)
	}
	expect.Equal(t, "jobs are left", "30", query(t, db, "SELECT count() FROM {db}.v_jobs"))
}

// TestAStoredDayExpiresAsAWhole: rows of the first and last moment of a day, and their counters,
// expire together. This is when the retention's number of whole days has passed, whatever time the
// api received them.
func TestAStoredDayExpiresAsAWhole(t *testing.T) {
	t.Parallel()
	db := open(t)
	query(t, db, "SYSTEM STOP TTL MERGES {db}.records")
	query(t, db, "SYSTEM STOP TTL MERGES {db}.counts_1m")
	today := time.Now().UTC().Truncate(24 * time.Hour)
	for seq, at := range []time.Time{today.AddDate(0, 0, -3), today.AddDate(0, 0, -2).Add(-time.Millisecond), today.AddDate(0, 0, -2), today.Add(time.Hour)} {
		insert(t, db, storedOn(t, uint64(seq)+1, at, received, 10))
	}
	for _, table := range []string{"records", "counts_1m"} {
		fatal.If(t, db.Retain(t.Context(), warehouse.Retention{Table: table, Days: 2}))
	}
	due, err := db.Due(t.Context(), time.Now())
	if want := today.Add(time.Since(today)+time.Hour).Truncate(24*time.Hour).AddDate(0, 0, -3).Format(time.DateOnly); err != nil || due != want {
		t.Errorf("due is what was stored up to %s, %v, want %s", due, err, want)
	}
	// What ClickHouse's TTL expires: merged one by one, each part is of one block.
	query(t, db, "SYSTEM START TTL MERGES {db}.records")
	query(t, db, "SYSTEM START TTL MERGES {db}.counts_1m")
	for _, c := range []struct{ sql, want string }{
		{"SELECT groupArray(d) FROM (SELECT DISTINCT delete_ttl_info_max AS d FROM system.parts WHERE active AND database = '{db}' AND table = 'records' AND rows > 0 AND d < now() ORDER BY d)", "[]"},
		{"SELECT groupArray(s) FROM (SELECT DISTINCT stream_seq AS s FROM {db}.records ORDER BY s)", "[3,4]"},
		{"SELECT toString(min(stored_day)) FROM {db}.counts_1m", today.AddDate(0, 0, -2).Format(time.DateOnly)},
	} {
		for deadline := time.Now().Add(time.Minute); query(t, db, c.sql) != c.want; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: got %s, want %s", c.sql, query(t, db, c.sql), c.want)
			}
		}
	}
}

// TestATokenGoesWithItsExpiredRows: ClickHouse drops an insert's token when it clears the expired
// part. Until then the same insert is deduplicated though its rows are gone; later it is stored as
// new.
func TestATokenGoesWithItsExpiredRows(t *testing.T) {
	t.Parallel()
	db := open(t)
	old := storedOn(t, 1, time.Now().AddDate(0, 0, -5), received, 10)
	insert(t, db, old)
	for _, table := range []string{"records", "counts_1m"} {
		fatal.If(t, db.Retain(t.Context(), warehouse.Retention{Table: table, Days: 2}))
	}
	again := storedOn(t, 1, time.Now(), received, 10)
	begun := time.Now()
	for stored := uint64(0); stored == 0; time.Sleep(time.Second) {
		if _, rows, err := db.Visible(t.Context(), old); err != nil || rows > 0 {
			fatal.When(t, time.Since(begun) > time.Minute, "after a minute %d rows are there: %v", rows, err)
			continue
		}
		insert(t, db, again)
		var err error
		if _, stored, err = db.Visible(t.Context(), again); err != nil || stored != 0 && stored != 10 {
			t.Fatalf("%d rows of 10 are stored: %v", stored, err)
		}
		fatal.When(t, time.Since(begun) > 2*time.Minute, "the token is remembered two minutes after the rows expired")
	}
}

// TestWhatIsDueFollowsTheShortestRetention of those the tables have or will have.
func TestWhatIsDueFollowsTheShortestRetention(t *testing.T) {
	t.Parallel()
	db := open(t)
	clock, err := db.Clock(t.Context())
	fatal.If(t, err)
	ago := func(days int) string { return clock.UTC().Add(time.Hour).AddDate(0, 0, -days-1).Format(time.DateOnly) }
	for _, step := range []struct {
		set  warehouse.Retention
		more []warehouse.Retention
		want string
	}{
		{warehouse.Retention{Table: "records", Days: 30}, nil, ago(30)},
		{warehouse.Retention{Table: "changes", Days: 2}, nil, ago(30)},
		{warehouse.Retention{Table: "counts_1m", Days: 7}, nil, ago(7)},
		{warehouse.Retention{Table: "records", Days: 200}, nil, ago(7)},
		{warehouse.Retention{Table: "counts_1m", Days: 0}, nil, ago(200)},
		{warehouse.Retention{Table: "records", Days: 0}, nil, ""},
		{warehouse.Retention{Table: "records", Days: 20}, []warehouse.Retention{{Table: "records", Days: 90}}, ago(20)},
		{warehouse.Retention{Table: "records", Days: 90}, []warehouse.Retention{{Table: "counts_1m", Days: 20}, {Table: "changes", Days: 2}}, ago(20)},
	} {
		fatal.If(t, db.Retain(t.Context(), step.set))
		if due, err := db.Due(t.Context(), clock, step.more...); err != nil || due != step.want {
			t.Errorf("with %+v and %+v what was stored up to %q is due, %v, want %q", step.set, step.more, due, err, step.want)
		}
	}
}

func TestBadRetentionIsRefused(t *testing.T) {
	t.Parallel()
	db := open(t)
	for _, c := range []struct {
		r    warehouse.Retention
		want string
	}{
		{warehouse.Retention{Table: "jobs", Days: 30}, "jobs has no retention"},
		{warehouse.Retention{Table: "records", Days: 1}, "at least 2"},
		{warehouse.Retention{Table: "records", Days: -1}, "at least 2"},
		{warehouse.Retention{Table: "records", Days: 99999}, "at most 10000"},
	} {
		if err := db.Retain(t.Context(), c.r); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q in it", c.r, err, c.want)
		}
	}
}
