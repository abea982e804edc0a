package warehouse_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

// life returns a block of a later incarnation of its lane.
func life(t testing.TB, incarnation uint64, lane int, seq uint64, records ...string) record.Block {
	b := block(t, lane, seq, records...)
	for i := range b.Columns.Incarnation {
		b.Columns.Incarnation[i] = incarnation
	}
	b.Token = fmt.Sprintf("FLOW_%d@%d:%d-%d:0", lane, incarnation, seq, seq)
	return b
}

func insert(t testing.TB, db *warehouse.DB, blocks ...record.Block) {
	t.Helper()
	for _, b := range blocks {
		fatal.If(t, db.Insert(t.Context(), b))
	}
}

func TestTheLastMessageOfALaneIsFound(t *testing.T) {
	db := open(t)
	insert(t, db, life(t, 7, 0, 9, jobs(900, 3)...), life(t, 7, 0, 3, jobs(300, 3)...), life(t, 7, 1, 2, jobs(200, 3)...), life(t, 8, 0, 1, jobs(100, 3)...))
	for _, tt := range []struct {
		lane            int
		incarnation     uint64
		wantOf, wantSeq uint64
	}{{0, 7, 7, 9}, {0, 8, 8, 1}, {0, 9, 9, 0}, {1, 7, 7, 2}, {2, 7, 7, 0}, {0, 0, 8, 1}, {1, 0, 7, 2}, {2, 0, 0, 0}} {
		if of, seq, err := db.Last(t.Context(), tt.lane, tt.incarnation); err != nil || of != tt.wantOf || seq != tt.wantSeq {
			t.Errorf("Last of lane %d in incarnation %d: got %d up to %d, %v, want %d up to %d", tt.lane, tt.incarnation, of, seq, err, tt.wantOf, tt.wantSeq)
		}
	}
	query(t, db, "ALTER TABLE {db}.records DELETE WHERE stream_seq = 9 SETTINGS mutations_sync = 2")
	if _, got, err := db.Last(t.Context(), 0, 7); err != nil || got != 3 {
		t.Errorf("Last of a table that has lost its last message: got %d, %v, want 3", got, err)
	}
}

func visible(t testing.TB, db *warehouse.DB, b record.Block) uint64 {
	t.Helper()
	least, most, err := db.Visible(t.Context(), b)
	fatal.When(t, err != nil || least != most, "%d to %d rows on a single server, %v", least, most, err)
	return most
}

func TestOnlyTheRowsOfTheBlockAreVisible(t *testing.T) {
	db := open(t)
	b := block(t, 0, 5, jobs(1, 10)...)
	insert(t, db, b)
	for _, tt := range []struct {
		from, to int
		want     uint64
	}{{0, 0, 0}, {0, 10, 10}, {3, 7, 4}, {9, 10, 1}} {
		b.From, b.To = tt.from, tt.to
		if got := visible(t, db, b); got != tt.want {
			t.Errorf("rows %d to %d: got %d, want %d", tt.from, tt.to, got, tt.want)
		}
	}
	shuffled := block(t, 0, 5, jobs(1, 10)...)
	shuffled.Columns.Arrange([]int{3, 1, 9, 0, 4, 8, 2, 7, 5, 6})
	expect.Equal(t, "in another order", 10, visible(t, db, shuffled))
	for name, other := range map[string]record.Block{
		"another lane":        block(t, 1, 5, jobs(1, 10)...),
		"another incarnation": life(t, 1, 0, 5, jobs(1, 10)...),
	} {
		if got := visible(t, db, other); got != 0 {
			t.Errorf("%s: got %d, want none", name, got)
		}
	}
}

func at(position int, ts time.Time) string {
	return fmt.Sprintf(`{"partitionId":1,"position":%d,"timestamp":%d,"valueType":"JOB"}`, position, ts.UnixMilli())
}

func TestRowsOfAnotherMonthAreNotCounted(t *testing.T) {
	db := open(t)
	november, october := received, received.AddDate(0, -1, 0)
	both := block(t, 0, 5, at(1, november), at(2, october), at(3, november))
	both.Columns.Arrange([]int{1, 0, 2})
	insert(t, db, both)
	query(t, db, "ALTER TABLE {db}.records DROP PARTITION 202511")
	first, second := both, both
	first.To, second.From = 1, 1
	if f, s := visible(t, db, first), visible(t, db, second); f != 1 || s != 0 {
		t.Errorf("got %d rows of October and %d of November, want 1 and none", f, s)
	}
}

// TestRecoveryReadsTheDaysOfItsBlockOnly: rows of other days do not slow the query after a crash.
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
		"Visible": func() error { _, _, err := db.Visible(t.Context(), last); return err },
		"Last":    func() error { _, _, err := db.Last(t.Context(), 0, 7); return err },
		"Known": func() error {
			return db.Known(t.Context(), last.Columns, []int{0, 1}, "", func(*flow.Identity) {})
		},
	} {
		before := rowsRead(t, db)
		fatal.If(t, question())
		if read := rowsRead(t, db) - before; read > perDay {
			t.Errorf("%s reads %d rows of %d, for a block of 2", name, read, days*perDay+2)
		}
	}
}

// rowsRead is the total of rows that queries have read in the engine.
func rowsRead(t testing.TB, db *warehouse.DB) (n int) {
	t.Helper()
	_, err := fmt.Sscan(query(t, db, "SELECT sum(value) FROM system.events WHERE event = 'SelectedRows'"), &n)
	fatal.If(t, err)
	return n
}

func TestPartsAreCountedRatherTooMany(t *testing.T) {
	db := openNew(t) // parts of removed rows count
	if n, err := db.PartsSince(t.Context(), time.Now()); err != nil || n != 0 {
		t.Errorf("an empty table: got %d, %v, want 0", n, err)
	}
	for i := range 5 {
		insert(t, db, block(t, 0, uint64(i+1), jobs(1+100*i, 2)...))
	}
	future := time.Now().Add(time.Hour)
	for _, tt := range []struct {
		name      string
		then      time.Time
		low, high uint64
	}{
		{"a claim from before", time.Now().Add(-time.Hour), 5, 6},
		{"a claim that comes after all of them", future, 0, 0},
	} {
		if n, err := db.PartsSince(t.Context(), tt.then); err != nil || n < tt.low || n > tt.high {
			t.Errorf("%s: got %d, %v, want %d to %d", tt.name, n, err, tt.low, tt.high)
		}
	}
	query(t, db, "OPTIMIZE TABLE {db}.records FINAL")
	if n, err := db.PartsSince(t.Context(), time.Now().Add(-time.Hour)); err != nil || n < 5 {
		t.Errorf("after a merge: got %d, %v, want at least 5", n, err)
	}
}

// TestReaggregate: the views miss a block that the table has.
func TestReaggregate(t *testing.T) {
	db := open(t)
	first, second := life(t, 7, 0, 1, jobs(1, 10)...), life(t, 7, 0, 2, jobs(101, 10)...)
	insert(t, db, first)
	tables := []string{"sources", "jobs", "process_instances"}
	all := func() string {
		var b strings.Builder
		for _, table := range tables {
			b.WriteString(query(t, db, "SELECT * FROM {db}."+table+" FINAL ORDER BY ALL FORMAT JSONEachRow") + "\n")
		}
		return b.String()
	}
	insert(t, db, second)
	want := all()
	fatal.If(t, db.Reaggregate(t.Context(), second))
	expect.Equal(t, "a second insert changed the aggregates", want, all())

	// As if the views had received the first block only.
	for _, table := range tables {
		query(t, db, "TRUNCATE TABLE {db}."+table)
	}
	fatal.If(t, db.Reaggregate(t.Context(), first))
	expect.Not(t, strings.Contains(all(), "101"), "it has more than the block")
	fatal.If(t, db.Reaggregate(t.Context(), second))
	expect.Equal(t, "the aggregates after a second insert", want, all())
	expect.Equal(t, "the counter", "20", query(t, db, "SELECT sum(records) FROM {db}.counts_1m"))
}
