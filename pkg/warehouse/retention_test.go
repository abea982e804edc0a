package warehouse_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

// storedOn is a block of n records of one moment that was stored at another.
func storedOn(t *testing.T, seq uint64, at, ts time.Time, n int) record.Block {
	t.Helper()
	var records []string
	for i := range n {
		records = append(records, fmt.Sprintf(`{"partitionId":1,"position":%d,"key":%d,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","timestamp":%d,
			"value":{"bpmnProcessId":"order","processInstanceKey":"7"}}`, int(seq)*1000+i, int(seq)*1000+i, ts.UnixMilli()))
	}
	m := flow.Message{Seq: seq, Topic: "flow.0.record", Received: received, Body: []byte("[" + strings.Join(records, ",") + "]")}
	c := new(record.Columns)
	if err := c.Append(&m); err != nil {
		t.Fatal(err)
	}
	return record.Block{Columns: c, To: c.Rows(), Token: fmt.Sprintf("FLOW_0@1:%d-%d:0", seq, seq), StoredAt: at.UnixMilli()}
}

// TestRetentionCountsFromStoredAt shortens the retention: a day that was stored before
// goes as a whole, and nothing else, though its records are of the same time.
func TestRetentionCountsFromStoredAt(t *testing.T) {
	t.Parallel()
	db := open(t)
	now := time.Now()
	for seq, days := range []int{100, 20, 0} {
		if err := db.Insert(t.Context(), storedOn(t, uint64(seq)+1, now.AddDate(0, 0, -days), now, 10)); err != nil {
			t.Fatal(err)
		}
	}
	if kept, err := db.Kept(t.Context()); err != nil || kept != 390*24*time.Hour {
		t.Errorf("at first rows are kept %v, %v", kept, err)
	}
	for _, r := range []warehouse.Retention{{"records", 30}, {"counts_1m", 60}, {"changes", 0}} {
		if err := db.Retain(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	got, err := db.Retentions(t.Context())
	if diff := cmp.Diff([]warehouse.Retention{{"records", 30}, {"counts_1m", 60}, {"changes", 0}}, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	const rows = "SELECT groupArray(n) FROM (SELECT stream_seq, count() AS n FROM {db}.records GROUP BY stream_seq ORDER BY stream_seq)"
	for deadline := time.Now().Add(time.Minute); query(t, db, rows) != "[10,10]"; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("rows of the messages that are kept: %s", query(t, db, rows))
		}
	}
	if err := db.Check(t.Context()); err != nil {
		t.Errorf("the schema is not good any more: %v", err)
	}
	if folded := query(t, db, "SELECT count() FROM {db}.v_jobs"); folded != "30" {
		t.Errorf("%s jobs are left", folded)
	}
}

// TestALongerRetentionBringsNothingBack: what may have expired before is known.
func TestALongerRetentionBringsNothingBack(t *testing.T) {
	t.Parallel()
	db := open(t)
	for _, step := range []struct {
		days int
		kept time.Duration // in days, about
	}{{30, 30}, {200, 30}, {0, 30}, {10, 10}, {20, 10}} {
		if err := db.Retain(t.Context(), warehouse.Retention{Table: "records", Days: step.days}); err != nil {
			t.Fatal(err)
		}
		kept, err := db.Kept(t.Context())
		want := step.kept * 24 * time.Hour / 40 * 39
		if err != nil || (kept-want).Abs() > time.Hour {
			t.Errorf("with %d days rows are kept %v, want %v: %v", step.days, kept, want, err)
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
