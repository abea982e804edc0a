package warehouse_test

import (
	"fmt"
	"slices"
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

func of(t testing.TB, source string, seq uint64, records ...string) record.Block {
	t.Helper()
	c := new(record.Columns)
	m := flow.Message{Seq: seq, Source: source, Incarnation: 7, Received: received, Body: []byte("[" + strings.Join(records, ",") + "]")}
	fatal.If(t, c.Append(&m))
	return record.Block{Columns: c, To: c.Rows(), Token: fmt.Sprint("FLOW_0@7:", seq), StoredAt: storedAt}
}

// known looks up all rows of a block, and returns the result as text.
func known(t testing.TB, db *warehouse.DB, b record.Block) (all []string) {
	t.Helper()
	rows := make([]int, b.Columns.Rows())
	for i := range rows {
		rows[i] = i
	}
	err := db.Known(t.Context(), b.Columns, rows, "", func(k *flow.Identity) {
		all = append(all, fmt.Sprintf("%s %d-%d %d %s %s %s %d %q %x", k.Source, k.PartitionID, k.Position, k.TS, k.RecordType, k.ValueType, k.Intent, k.Key, k.OwnID, k.Content))
	})
	fatal.If(t, err)
	slices.Sort(all)
	return all
}

func TestKnownFindsWhatIsStored(t *testing.T) {
	db := open(t)
	at := received.UnixMilli()
	positioned := fmt.Sprintf(`{"partitionId":2,"position":9007199254740993,"timestamp":%d,"key":18014398509481985,"recordType":"EVENT","valueType":"JOB","intent":"CREATED"}`, at)
	withID := fmt.Sprintf(`{"id":"it's \\ odd","partitionId":2,"position":17,"timestamp":%d,"valueType":"JOB"}`, at)
	content := fmt.Sprintf(`{"id":"job-7","timestamp":%d,"valueType":"JOB","value":{"bpmnProcessId":"o'brien","processInstanceKey":"4"}}`, at)
	timeless := `{"id":"job-7","intent":"CREATED"}`
	insert(t, db, of(t, "engine 'a'", 1, positioned, withID, content, timeless), of(t, "b", 2, positioned, content, timeless))

	hash := func(c *record.Columns, row int) string { return fmt.Sprintf("%x", c.Identity.Value(row)) }
	again := of(t, "engine 'a'", 3, positioned, withID, content, timeless)
	want := []string{
		fmt.Sprintf("engine 'a' 0-0 %d  JOB  0 %q %s", at, "job-7", hash(again.Columns, 2)),
		fmt.Sprintf("engine 'a' 0-0 0   CREATED 0 %q %s", "job-7", hash(again.Columns, 3)),
		fmt.Sprintf("engine 'a' 2-17 %d  JOB  0 %q ", at, `it's \ odd`),
		fmt.Sprintf("engine 'a' 2-9007199254740993 %d EVENT JOB CREATED 18014398509481985 %q ", at, ""),
	}
	slices.Sort(want)
	expect.Equal(t, "the same records again", want, known(t, db, again))
	for name, b := range map[string]record.Block{
		"another source":             of(t, "c", 4, positioned, content, timeless),
		"another position":           of(t, "b", 5, strings.Replace(positioned, "9007199254740993", "9007199254740992", 1)),
		"another day":                of(t, "b", 6, strings.Replace(positioned, fmt.Sprint(at), fmt.Sprint(at-86400_000), 1)),
		"another content":            of(t, "b", 7, strings.Replace(content, "o'brien", "obrien", 1)),
		"neither position nor an id": of(t, "b", 8, `{"key":5}`),
	} {
		if got := known(t, db, b); len(got) > 0 {
			t.Errorf("%s: found %v", name, got)
		}
	}
}

// TestKnownOfAWholeBlock: a hundred thousand records over two days are all resent, shuffled.
func TestKnownOfAWholeBlock(t *testing.T) {
	db := open(t)
	const n = 100_000
	records := make([]string, n)
	for i := range records {
		records[i] = fmt.Sprintf(`{"partitionId":%d,"position":%d,"timestamp":%d,"valueType":"V%d","key":%d}`,
			1+i%5, 1_000_000+3*i, received.Add(-time.Duration(i)*time.Second).UnixMilli(), i%7, i)
	}
	b := of(t, "a", 1, records...)
	insert(t, db, b)
	slices.Reverse(records)
	b = of(t, "a", 2, records...)
	rows := make([]int, n)
	for i := range rows {
		rows[i] = i
	}
	found := map[int64]bool{}
	start := time.Now()
	err := db.Known(t.Context(), b.Columns, rows, "", func(k *flow.Identity) {
		if k.Position == 1_000_000+3*k.Key && k.PartitionID == 1+k.Key%5 {
			found[k.Key] = true
		}
	})
	fatal.If(t, err)
	expect.Not(t, len(found) != n, "found %d of %d", len(found), n)
	t.Logf("%d records looked up in %v", n, time.Since(start))
}

func TestRunningInserts(t *testing.T) {
	db := open(t)
	is := func(lane int, want bool) bool {
		t.Helper()
		got, err := db.Inserting(t.Context(), lane)
		fatal.If(t, err)
		return got == want
	}
	expect.Not(t, !is(5, false), "lane 5 has an insert before it began")
	ended := make(chan string)
	go func() {
		ended <- query(t, db, "INSERT INTO FUNCTION null('x UInt8') SELECT sleepEachRow(0.5) FROM numbers(6) SETTINGS max_block_size = 1, insert_deduplication_token = 'FLOW_5@7:1-1:a#0'")
	}()
	for deadline := time.Now().Add(20 * time.Second); !is(5, true); time.Sleep(10 * time.Millisecond) {
		fatal.When(t, time.Now().After(deadline), "lane 5 has no insert while it runs")
	}
	expect.Not(t, !is(0, false) || !is(55, false), "another lane has the insert of lane 5")
	<-ended
	expect.Not(t, !is(5, false), "lane 5 has an insert after it ended")
}

func TestMarks(t *testing.T) {
	db := open(t)
	day := flow.Day(received.UnixMilli())
	insert(t, db,
		of(t, "a", 1, at(5, received), at(9, received), at(3, received.AddDate(0, 0, -1)), `{"id":"x"}`),
		of(t, "it's b", 2, at(77, received), fmt.Sprintf(`{"id":"y","timestamp":%d}`, received.UnixMilli()), `{}`))
	marks, err := db.Marks(t.Context(), 0, 7, []flow.SourceDay{
		{Source: "a", Partition: 1, Day: day}, {Source: "a", Partition: 1, Day: day - 1}, {Source: "a", Partition: 2, Day: day},
		{Source: "a", Day: 0}, {Source: "a", Day: day}, {Source: "it's b", Partition: 1, Day: day}, {Source: "it's b", Day: day}, {Source: "c", Partition: 1, Day: day},
	})
	fatal.If(t, err)
	want := flow.Marks{Rows: 7, Last: map[flow.SourceDay]int64{
		{Source: "a", Partition: 1, Day: day}: 9, {Source: "a", Partition: 1, Day: day - 1}: 3, {Source: "a", Day: 0}: 0,
		{Source: "it's b", Partition: 1, Day: day}: 77, {Source: "it's b", Day: day}: received.UnixMilli(),
	}}
	expect.Equal(t, "Marks", want, marks)
	if lacking, err := db.StaleSourceDays(t.Context(), 0, 7); err != nil || len(lacking) > 0 {
		t.Errorf("Lacking: got %v, %v, want nothing", lacking, err)
	}
	query(t, db, "ALTER TABLE {db}.sources DELETE WHERE source = 'a' AND partition_id = 1 AND day = '2025-11-20' SETTINGS mutations_sync = 2")
	lacking, err := db.StaleSourceDays(t.Context(), 0, 7)
	if diff := cmp.Diff([]flow.SourceDay{{Source: "a", Partition: 1, Day: day - 1}}, lacking); err != nil || diff != "" {
		t.Errorf("Lacking: %v (-want +got):\n%s", err, diff)
	}
	query(t, db, "TRUNCATE TABLE {db}.sources")
	if lacking, err := db.StaleSourceDays(t.Context(), 0, 7); err != nil || len(lacking) != 6 {
		t.Errorf("Lacking of a truncated table: got %v, %v, want 6 days", lacking, err)
	}
	query(t, db, "TRUNCATE TABLE {db}.records")
	if lacking, err := db.StaleSourceDays(t.Context(), 0, 7); err != nil || len(lacking) > 0 {
		t.Errorf("Lacking when the records are gone too: got %v, %v, want nothing", lacking, err)
	}
}
