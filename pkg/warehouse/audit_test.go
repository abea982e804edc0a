package warehouse_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/record"
	"sluice/pkg/record/recordtest"
	"sluice/pkg/warehouse"
	"sluice/pkg/warehouse/native"
)

// TestADigestIsTheSameHereAndThere inserts records of many shapes and compares ClickHouse's digest
// of its rows with the block's.
func TestADigestIsTheSameHereAndThere(t *testing.T) {
	t.Parallel()
	db := open(t)
	var records []string
	for _, sample := range recordtest.Samples() {
		records = append(records, string(sample))
	}
	records = append(records, jobs(1, 50)...)
	records = append(records, `{"id":"odd\u001f\u0000\\N","key":-9223372036854775808,"timestamp":-1,"value":{"retries":null,"version":0,"errorMessage":"NULL","worker":"ü\u001f"}}`, `{}`)
	b := block(t, 0, 7, records...)
	fatal.If(t, db.Insert(t.Context(), b))
	for _, deep := range []bool{false, true} {
		t.Run(fmt.Sprintf("deep %v", deep), func(t *testing.T) {
			d := &native.Digest{Deep: deep}
			var want []warehouse.Row
			var sum warehouse.Sum
			for i := range b.Columns.Rows() {
				r := warehouse.Row{Seq: 7, Idx: uint32(i), ID: b.Columns.ID(i), Digest: d.Row(b.Columns, i)}
				want = append(want, r)
				sum.Rows++
				sum.Digest += r.Digest
			}
			var got []warehouse.Row
			for r, err := range db.Rows(t.Context(), 0, 0, 1, 100, d) {
				fatal.If(t, err)
				got = append(got, r)
			}
			expect.Equal(t, "rows", want, got)
			sums, err := db.Sums(t.Context(), 0, 0, 2, 100, 5, d)
			if diff := cmp.Diff(map[uint64]warehouse.Sum{1: sum}, sums); diff != "" || err != nil {
				t.Errorf("sums: %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// TestADeepDigestSeesEveryColumn changes a different column of each row.
func TestADeepDigestSeesEveryColumn(t *testing.T) {
	t.Parallel()
	db := open(t)
	columns := strings.Split(query(t, db, "SELECT name, multiIf(type LIKE '%String%', '\\'changed\\'', type LIKE '%DateTime%', 'toDateTime64(77,3)', '77') FROM system.columns WHERE database = '{db}' AND table = 'records' AND default_kind = '' AND name NOT IN ('lane', 'stored_at')"), "\n")
	b := block(t, 0, 1, jobs(1, len(columns))...)
	fatal.If(t, db.Insert(t.Context(), b))
	query(t, db, "CREATE TABLE {db}.saved ENGINE = Memory AS SELECT * FROM {db}.records")
	query(t, db, "TRUNCATE TABLE {db}.records")
	var changed []string
	for i, line := range columns {
		column, other, _ := strings.Cut(line, "\t")
		changed = append(changed, fmt.Sprintf("SELECT * REPLACE (%s AS %s) FROM {db}.saved WHERE stream_idx = %d", strings.ReplaceAll(other, `\'`, `'`), column, i))
	}
	query(t, db, "INSERT INTO {db}.records "+strings.Join(changed, " UNION ALL "))
	d, read := &native.Digest{Deep: true}, 0
	for r, err := range db.Rows(t.Context(), 0, 0, 0, 100, d) {
		fatal.If(t, err)
		if read++; int(r.Idx) < len(columns) && r.Digest == d.Row(b.Columns, int(r.Idx)) {
			t.Errorf("the digest does not see %s", columns[r.Idx])
		}
	}
	if want := len(new(record.Columns).All()) - 1; len(columns) != want || read < want-2 { // but lane; the query filters by incarnation and message
		t.Errorf("changed %d columns, want %d, and read %d of them: is one of records not in the digest?", len(columns), want, read)
	}
}

func TestWhatIsThereTwiceIsFound(t *testing.T) {
	t.Parallel()
	db := open(t)
	unmerged(t, db)
	for lane := range 2 {
		for seq := uint64(1); seq <= 3; seq++ {
			fatal.If(t, db.Insert(t.Context(), block(t, lane, seq, jobs(int(seq)*100, 3)...)))
		}
	}
	query(t, db, "INSERT INTO {db}.records SELECT * FROM {db}.records WHERE lane = 1 AND stream_seq = 2 AND stream_idx = 1")
	extents, err := db.Extents(t.Context())
	if diff := cmp.Diff([]warehouse.Extent{{Lane: 0, Rows: 9, First: 1, Last: 3}, {Lane: 1, Rows: 10, First: 1, Last: 3}}, extents); diff != "" || err != nil {
		t.Errorf("extents: %v (-want +got):\n%s", err, diff)
	}
	for _, tt := range []struct {
		lane   int
		before uint64
		want   uint64
	}{{0, 4, 9}, {1, 2, 3}, {1, 3, 7}} {
		if rows, err := db.RowsBefore(t.Context(), tt.lane, 0, tt.before, ""); err != nil || rows != tt.want {
			t.Errorf("rows of lane %d before %d: got %d, %v, want %d", tt.lane, tt.before, rows, err, tt.want)
		}
	}
	// Both lanes have the same records.
	var got []string
	err = db.Duplicates(t.Context(), "", func(d warehouse.Duplicate) {
		got = append(got, fmt.Sprintf("%s lane %d %d:%d rows %d places %d", d.ID, d.Lane, d.Seq, d.Idx, d.Rows, d.Places))
	})
	want := []string{
		"1-100 lane 1 1:0 rows 2 places 2", "1-101 lane 1 1:1 rows 2 places 2", "1-102 lane 1 1:2 rows 2 places 2",
		"1-200 lane 1 2:0 rows 2 places 2", "1-201 lane 1 2:1 rows 3 places 2", "1-202 lane 1 2:2 rows 2 places 2",
		"1-300 lane 1 3:0 rows 2 places 2", "1-301 lane 1 3:1 rows 2 places 2", "1-302 lane 1 3:2 rows 2 places 2",
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("duplicates: %v (-want +got):\n%s", err, diff)
	}
	rows, err := db.RowsPerDay(t.Context(), "")
	fatal.If(t, err)
	counted, err := db.CountedPerDay(t.Context(), "")
	fatal.If(t, err)
	if diff := cmp.Diff(rows, counted); diff != "" {
		t.Errorf("counters differ from rows (-rows +counters):\n%s", diff)
	}
}
