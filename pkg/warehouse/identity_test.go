package warehouse_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// TestPartitionsThatNoEngineHasLeaveNoRowEach: flow.sources never deletes a row, so a client must
// not add one with every record.
func TestPartitionsThatNoEngineHasLeaveNoRowEach(t *testing.T) {
	db := open(t)
	var records []string
	for n := range 1000 {
		records = append(records, fmt.Sprintf(`{"id":"r-%d","partitionId":%d,"position":1,"timestamp":%d}`, n, 8192+n, received.UnixMilli()))
	}
	insert(t, db, of(t, "a", 1, append(records, `{"partitionId":8191,"position":1,"timestamp":1763700000000}`)...))
	expect.Equal(t, "flow.sources: got want", "0,1000\n8191,1", query(t, db, "SELECT partition_id, sum(rows) FROM {db}.sources GROUP BY partition_id ORDER BY partition_id FORMAT CSV"))
}

// TestAPlaceIsFound: of a replayed dead letter, and of a message that is read again.
func TestAPlaceIsFound(t *testing.T) {
	db := open(t)
	place := func(seq uint64, id string, records ...string) record.Block {
		t.Helper()
		b := of(t, "a", 1, records...)
		m := flow.Message{Lane: 2, Seq: seq, ID: id, Source: "a", Incarnation: 1763704800000, Received: received, Body: []byte("[" + records[0] + "]")}
		b.Columns.Reset()
		fatal.If(t, b.Columns.Append(&m))
		b.To, b.Token = 1, fmt.Sprint("place ", seq, id)
		return b
	}
	const raw = `{"timestamp":1763700000000,"valueType":"JOB","value":{"processInstanceKey":"4"}}`
	first := place(7, "", raw)
	insert(t, db, first, place(8, "", raw))
	want := []string{fmt.Sprintf("a 0-0 1763700000000  JOB  0 %q %x", first.Columns.OwnID.Value(0), "2.1763704800000.7.0")}
	for name, b := range map[string]record.Block{
		"read again": first,
		"replayed":   place(90, flow.ReplayID("2.1763704800000.7.0", ""), raw),
	} {
		expect.Equal(t, name, want, known(t, db, b))
	}
	got, err := db.Incarnations(t.Context(), 2, 1763704799999)
	if diff := cmp.Diff([]flow.Incarnation{{ID: 1763704800000, First: 7}}, got); diff != "" || err != nil {
		t.Errorf("incarnations: %v (-want +got):\n%s", err, diff)
	}
	if got, err := db.Incarnations(t.Context(), 2, 1763704800000); len(got) > 0 || err != nil {
		t.Errorf("incarnations above the last one: %v, %v", got, err)
	}
}

// TestEveryMonthOfARequestIsCountedAsAPart: a request of 24 months, the api's maximum, ages all
// tokens by 24 parts. An ingester counts them all to determine the age of a claim.
func TestEveryMonthOfARequestIsCountedAsAPart(t *testing.T) {
	db := openNew(t)
	const months = 24
	before := time.Now().Add(-time.Second)
	parts, err := db.PartsSince(t.Context(), before.Add(-time.Hour))
	fatal.When(t, err != nil || parts != 0, "an empty table has %d parts: %v", parts, err)
	var records []string
	for month := range months {
		ts := time.Date(2024, time.Month(1+month), 3, 0, 0, 0, 0, time.UTC).UnixMilli()
		records = append(records, fmt.Sprintf(`{"partitionId":1,"position":%d,"timestamp":%d}`, 1+month, ts))
	}
	request := of(t, "a", 1, records...)
	insert(t, db, request)
	if parts, err = db.PartsSince(t.Context(), before.Add(-time.Hour)); err != nil || parts < months {
		t.Errorf("%d parts since, %v, want at least %d", parts, err, months)
	}
	insert(t, db, request) // its token is in the deduplication window
	expect.Equal(t, "rows", fmt.Sprint(months), query(t, db, "SELECT count() FROM {db}.records"))
}

// TestAMergeRemovesTrueRepeatsOnly: rows that differ in an identifying column stay; rows equal in
// all of them become one.
func TestAMergeRemovesTrueRepeatsOnly(t *testing.T) {
	db := open(t)
	position := func(more string) string {
		return `{"partitionId":1,"position":7,"timestamp":1763700000000,"key":5,"recordType":"EVENT","valueType":"JOB","intent":"CREATED"` + more + `}`
	}
	distinct := []string{
		position(""),
		position(`,"id":"own"`),
		position(`,"id":"other"`),
		position(`,"partitionId":2`),
		position(`,"position":8`),
		position(`,"timestamp":1763700000001`),
		position(`,"key":6`),
		position(`,"recordType":"COMMAND"`),
		position(`,"valueType":"TIMER"`),
		position(`,"intent":"created"`),
		position(`,"timestamp":4102444800000`), // from here on by its position
		position(`,"partitionId":8192`),
		position(`,"partitionId":8192,"id":"a"`), // from here on by its content
		position(`,"partitionId":8192,"id":"b"`),
		position(`,"partitionId":8192,"id":"a","sequence":3`),
	}
	var repeats []string // the same records in other bytes
	for i, raw := range distinct {
		switch {
		case i < 10:
			repeats = append(repeats, raw[:len(raw)-1]+`,"sequence":99,"authorizations":{}}`)
		case i >= 12:
			repeats = append(repeats, " "+raw)
		}
	}
	first, again := of(t, "a", 1, distinct...), of(t, "a", 2, repeats...)
	other := of(t, "b", 3, distinct[:10]...)
	for _, b := range []record.Block{first, again, other} {
		insert(t, db, b)
	}
	query(t, db, "OPTIMIZE TABLE {db}.records FINAL")
	if got, want := query(t, db, "SELECT source, count() FROM {db}.records GROUP BY source ORDER BY source FORMAT CSV"), fmt.Sprintf("\"a\",%d\n\"b\",10", len(distinct)); got != want {
		t.Errorf("after a merge: got\n%s\nwant\n%s", got, want)
	}
}
