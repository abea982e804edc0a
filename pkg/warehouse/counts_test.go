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

// life is a block of a later life of its lane.
func life(t testing.TB, incarnation uint64, lane int, seq uint64, records ...string) record.Block {
	b := block(t, lane, seq, records...)
	for i := range b.Columns.Incarnation {
		b.Columns.Incarnation[i] = incarnation
	}
	b.Claim.Token = fmt.Sprintf("FLOW_%d@%d:%d-%d:0", lane, incarnation, seq, seq)
	return b
}

func insert(t testing.TB, db *warehouse.DB, blocks ...record.Block) {
	t.Helper()
	for _, b := range blocks {
		if err := db.Insert(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheLastMessageOfALaneIsFound(t *testing.T) {
	db := open(t)
	insert(t, db, life(t, 7, 0, 9, jobs(900, 3)...), life(t, 7, 0, 3, jobs(300, 3)...), life(t, 7, 1, 2, jobs(200, 3)...), life(t, 8, 0, 1, jobs(100, 3)...))
	for _, tt := range []struct {
		lane        int
		incarnation uint64
		want        uint64
	}{{0, 7, 9}, {0, 8, 1}, {0, 9, 0}, {1, 7, 2}, {2, 7, 0}} {
		if got, err := db.LastSeq(t.Context(), tt.lane, tt.incarnation); err != nil || got != tt.want {
			t.Errorf("LastSeq of lane %d in life %d: got %d, %v, want %d", tt.lane, tt.incarnation, got, err, tt.want)
		}
	}
	for lane, want := range [][2]uint64{{8, 1}, {7, 2}, {0, 0}} {
		if life, seq, err := db.LastLife(t.Context(), lane); err != nil || life != want[0] || seq != want[1] {
			t.Errorf("LastLife of lane %d: got %d up to %d, %v, want %v", lane, life, seq, err, want)
		}
	}
	query(t, db, "ALTER TABLE {db}.records DELETE WHERE stream_seq = 9 SETTINGS mutations_sync = 2")
	if got, err := db.LastSeq(t.Context(), 0, 7); err != nil || got != 3 {
		t.Errorf("LastSeq of a table that has lost its last message: got %d, %v, want 3", got, err)
	}
}

func TestStoredCountsOnlyTheRowsOfTheClaim(t *testing.T) {
	db := open(t)
	b := block(t, 0, 5, jobs(1, 10)...)
	insert(t, db, b)
	for _, tt := range []struct {
		from, to int
		want     uint64
	}{{0, 0, 10}, {0, 10, 10}, {3, 7, 4}, {9, 10, 1}} {
		t.Run(fmt.Sprintf("rows %d to %d", tt.from, tt.to), func(t *testing.T) {
			b.Claim.From, b.Claim.To = tt.from, tt.to
			got, err := db.Stored(t.Context(), b)
			if diff := cmp.Diff(map[int]uint64{202511: tt.want}, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
	shuffled := block(t, 0, 5, jobs(1, 10)...)
	shuffled.Columns.Arrange([]int{3, 1, 9, 0, 4, 8, 2, 7, 5, 6})
	if got, err := db.Stored(t.Context(), shuffled); err != nil || got[202511] != 10 {
		t.Errorf("in another order: got %v, %v, want all 10", got, err)
	}
	for name, other := range map[string]record.Block{
		"another lane": block(t, 1, 5, jobs(1, 10)...),
		"another life": life(t, 1, 0, 5, jobs(1, 10)...),
	} {
		if got, err := db.Stored(t.Context(), other); err != nil || len(got) != 0 {
			t.Errorf("%s: got %v, %v, want nothing", name, got, err)
		}
	}
}

// at is a record of a point in time.
func at(position int, ts time.Time) string {
	return fmt.Sprintf(`{"partitionId":1,"position":%d,"timestamp":%d,"valueType":"JOB"}`, position, ts.UnixMilli())
}

func TestStoredCountsByMonth(t *testing.T) {
	db := open(t)
	november, october := received, received.AddDate(0, -1, 0)
	both := block(t, 0, 5, at(1, november), at(2, october), at(3, november))
	insert(t, db, both)
	query(t, db, "ALTER TABLE {db}.records DROP PARTITION 202511")
	got, err := db.Stored(t.Context(), both)
	if diff := cmp.Diff(map[int]uint64{202510: 1}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestRecoveryReadsTheDaysOfItsBlockOnly: what was stored on other days does
// not make the question after a crash longer.
func TestRecoveryReadsTheDaysOfItsBlockOnly(t *testing.T) {
	db := open(t)
	const days, perDay = 6, 10_000
	for day := 1; day <= days; day++ {
		var records []string
		for i := range perDay {
			records = append(records, at(day*perDay+i, received.AddDate(0, 0, -day)))
		}
		insert(t, db, life(t, 7, 0, uint64(day), records...))
	}
	last := life(t, 7, 0, days+1, at(1, received), at(2, received))
	insert(t, db, last)
	for name, question := range map[string]func() error{
		"Stored":  func() error { _, err := db.Stored(t.Context(), last); return err },
		"LastSeq": func() error { _, err := db.LastSeq(t.Context(), 0, 7); return err },
		"Known": func() error {
			return db.Known(t.Context(), last.Columns, []int{0, 1}, func(*flow.Identity) {})
		},
	} {
		before := rowsRead(t, db)
		if err := question(); err != nil {
			t.Fatal(err)
		}
		if read := rowsRead(t, db) - before; read > perDay {
			t.Errorf("%s reads %d rows of %d, for a block of 2", name, read, days*perDay+2)
		}
	}
}

// rowsRead is how many rows the engine has read for questions so far.
func rowsRead(t testing.TB, db *warehouse.DB) (n int) {
	t.Helper()
	_, err := fmt.Sscan(query(t, db, "SELECT sum(value) FROM system.events WHERE event = 'SelectedRows'"), &n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPartsSinceCountsRatherTooMany(t *testing.T) {
	db := openNew(t) // parts of rows that were removed count
	if n, err := db.PartsSince(t.Context(), time.Now()); err != nil || n != 0 {
		t.Errorf("an empty table: got %d, %v, want 0", n, err)
	}
	for i := range 5 {
		insert(t, db, block(t, 0, uint64(i+1), jobs(1+100*i, 2)...))
	}
	future := time.Now().Add(time.Hour)
	for _, tt := range []struct {
		name        string
		then        time.Time
		least, most uint64
	}{
		{"a claim from before", time.Now().Add(-time.Hour), 5, 6},
		{"a claim that comes after all of them", future, 0, 0},
	} {
		if n, err := db.PartsSince(t.Context(), tt.then); err != nil || n < tt.least || n > tt.most {
			t.Errorf("%s: got %d, %v, want %d to %d", tt.name, n, err, tt.least, tt.most)
		}
	}
	query(t, db, "OPTIMIZE TABLE {db}.records FINAL")
	if n, err := db.PartsSince(t.Context(), time.Now().Add(-time.Hour)); err != nil || n < 5 {
		t.Errorf("after a merge: got %d, %v, want at least 5", n, err)
	}
}

// TestRefold: the views have not heard of a block that the table has.
func TestRefold(t *testing.T) {
	db := open(t)
	first, second := life(t, 7, 0, 1, jobs(1, 10)...), life(t, 7, 0, 2, jobs(101, 10)...)
	insert(t, db, first)
	tables := []string{"sources", "jobs", "instances"}
	all := func() string {
		var b strings.Builder
		for _, table := range tables {
			b.WriteString(query(t, db, "SELECT * FROM {db}."+table+" FINAL ORDER BY ALL FORMAT JSONEachRow") + "\n")
		}
		return b.String()
	}
	insert(t, db, second)
	want := all()
	if err := db.Refold(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, all()); diff != "" {
		t.Errorf("telling again changed the folds:\n%s", diff)
	}

	// As if the views had heard of the first block only.
	for _, table := range tables {
		query(t, db, "TRUNCATE TABLE {db}."+table)
	}
	if err := db.Refold(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(all(), "101") {
		t.Error("it tells more than the block")
	}
	if err := db.Refold(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, all()); diff != "" {
		t.Errorf("the folds after a refold (-want +got):\n%s", diff)
	}
	if got := query(t, db, "SELECT sum(records) FROM {db}.counts_1m"); got != "20" {
		t.Errorf("the counter says %s, want 20: it may not be told twice", got)
	}
}
