package warehouse_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/record"

	"sluice/pkg/change"
	"sluice/pkg/warehouse"
)

func TestABlockIsStoredOnceHoweverOftenItIsInserted(t *testing.T) {
	db := open(t)
	b := block(t, 0, 7, jobs(1, 500)...)
	for range 3 {
		fatal.If(t, db.Insert(t.Context(), b))
	}
	expect.Equal(t, "rows, counted, jobs", "500\t500\t500", totals(t, db))
	another := block(t, 0, 8, jobs(501, 20)...)
	fatal.If(t, db.Insert(t.Context(), another))
	expect.Equal(t, "rows, counted, jobs after another block", "520\t520\t520", totals(t, db))
}

func TestFourLanesInsertAtOnceAndEachBlockTwice(t *testing.T) {
	db := open(t)
	var wg sync.WaitGroup
	for lane := range 4 {
		b := block(t, lane, 1, jobs(1+1000*lane, 100)...)
		for range 2 {
			wg.Go(func() {
				expect.NoError(t, db.Insert(t.Context(), b))
			})
		}
	}
	wg.Wait()
	expect.Equal(t, "rows, counted, jobs", "400\t400\t400", totals(t, db))
}

func TestPiecesOfABlockAreItsRows(t *testing.T) {
	db := open(t)
	b := block(t, 0, 1, jobs(1, 100)...)
	whole := b.Token
	for _, piece := range [][2]int{{0, 30}, {30, 31}, {31, 100}, {31, 100}} {
		b.From, b.To = piece[0], piece[1]
		b.Token = whole + "#" + string(rune('a'+piece[0]%26))
		fatal.If(t, db.Insert(t.Context(), b))
	}
	expect.Equal(t, "rows, counted, jobs", "100\t100\t100", totals(t, db))
	if got, want := query(t, db, "SELECT groupBitXor(key), uniqExact(id), min(stream_idx), max(stream_idx) FROM {db}.records"),
		query(t, db, "SELECT groupBitXor(9007199254740994 + number), 100, 0, 99 FROM numbers(100)"); got != want {
		t.Errorf("keys, ids, places: got %s, want %s", got, want)
	}
}

// TestOneTokenStoresOneOfTwoInserts: a whole piece and its first part have the same token. The
// first to arrive is stored, in the table and in every view. Cutting a piece relies on this.
func TestOneTokenStoresOneOfTwoInserts(t *testing.T) {
	for name, partFirst := range map[string]bool{"the part comes first": true, "the whole comes first": false} {
		t.Run(name, func(t *testing.T) {
			db := open(t)
			whole := block(t, 0, 1, jobs(1, 100)...)
			part := whole
			part.To = 30
			both, want := []record.Block{whole, part, whole}, "100\t100\t100"
			if partFirst {
				both, want = []record.Block{part, whole, part}, "30\t30\t30"
			}
			insert(t, db, both...)
			expect.Equal(t, "rows, counted, jobs", want, totals(t, db))
		})
	}
}

func TestABlockWithoutRecordsIsNothingToInsert(t *testing.T) {
	db := open(t)
	expect.NoError(t, db.Insert(t.Context(), block(t, 0, 1)))
}

func TestChangesAreKeptOncePerToken(t *testing.T) {
	db := open(t)
	at := time.Date(2025, 11, 21, 5, 0, 0, 123e6, time.UTC)
	changes := []change.Audit{
		{Seq: 9, At: at, By: "engine-a", Kind: change.UserPatched, TargetKind: "user", Key: "ada", Members: []string{"feature", "telephone"}},
		{Seq: 11, At: at, By: "engine-b", Kind: change.FieldDeleted, TargetKind: "field", Key: "t1/f1"},
	}
	for range 2 {
		fatal.If(t, db.InsertChanges(t.Context(), "FLOW_0@1:9-11:0", changes))
	}
	fatal.If(t, db.InsertChanges(t.Context(), "none", nil))
	got := query(t, db, "SELECT stream_seq, changed_at, changed_by, kind, target_kind, target_key, members FROM {db}.changes ORDER BY stream_seq")
	want := "9\t2025-11-21 05:00:00.123\tengine-a\tuser.patched\tuser\tada\t['feature','telephone']\n" +
		"11\t2025-11-21 05:00:00.123\tengine-b\tfield.deleted\tfield\tt1/f1\t[]"
	expect.Equal(t, "flow.changes", want, got)
}

// TestPartsAreCountedAsTheEngineMakesThem inserts records of several months in any order, and
// compares the metric with the parts in the table.
func TestPartsAreCountedAsTheEngineMakesThem(t *testing.T) {
	db := open(t)
	unmerged(t, db)
	at := func(year int, month time.Month, day int) string {
		return fmt.Sprintf(`{"id":"%d-%d-%d","timestamp":%d}`, year, month, day, time.Date(year, month, day, 0, 0, 0, 0, time.UTC).UnixMilli())
	}
	end := time.Date(2025, 4, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	b := block(t, 0, 1, at(2025, 3, 31), at(2024, 3, 1), at(2025, 3, 1), at(2025, 4, 1), at(2024, 3, 31),
		fmt.Sprintf(`{"id":"last","timestamp":%d}`, end-1), `{"id":"none"}`)
	fatal.If(t, db.Insert(t.Context(), b))
	made := query(t, db, "SELECT toString(count()) FROM system.parts WHERE database = '{db}' AND table = 'records' AND active")
	if got := warehouse.Months(b.Columns.TS); fmt.Sprint(got) != made || made != "4" {
		t.Errorf("counted %d, made %s, want 4", got, made)
	}
}

// TestATableForgetsItsTokens is the remedy in docs/runbooks/lanes.md for a token without rows. It
// resets the deduplication window of the table, not of its views' targets.
func TestATableForgetsItsTokens(t *testing.T) {
	db := open(t)
	b := block(t, 0, 1, jobs(1, 5)...)
	for range 2 {
		fatal.If(t, db.Insert(t.Context(), b))
	}
	if got, want := totals(t, db), "5\t5\t5"; got != want {
		t.Fatalf("rows, counted, jobs: got %s, want %s", got, want)
	}
	query(t, db, "ALTER TABLE {db}.records MODIFY SETTING non_replicated_deduplication_window = 0")
	query(t, db, "ALTER TABLE {db}.records MODIFY SETTING non_replicated_deduplication_window = 100000")
	if err := db.Check(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	fatal.If(t, db.Insert(t.Context(), b))
	expect.Equal(t, "rows, counted, jobs", "10\t5\t5", totals(t, db))
}
