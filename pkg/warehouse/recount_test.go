package warehouse_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/warehouse"
)

// TestCountersAreCorrectedByDifferences corrupts the counters of a day, and corrects them as a
// recount does, with crashes.
func TestCountersAreCorrectedByDifferences(t *testing.T) {
	db := open(t)
	fatal.If(t, db.Insert(t.Context(), block(t, 0, 1, jobs(1, 50)...)))
	const day = "2025-11-21"
	recount := func() *warehouse.Recount {
		t.Helper()
		r, err := db.Recount(t.Context(), day, "")
		fatal.If(t, err)
		return r
	}
	fix := func(r *warehouse.Recount, times int) {
		t.Helper()
		fatal.If(t, db.Fix(t.Context(), r, times))
	}
	counts := func() string {
		return query(t, db, "SELECT count(), sum(n) FROM (SELECT minute, sum(records) AS n FROM {db}.counts_1m GROUP BY minute HAVING n != 0)")
	}
	want := counts()
	if r := recount(); !r.Right() {
		t.Fatalf("correct counters are reported as wrong: %+v", r)
	}

	wrong := "INSERT INTO {db}.counts_1m SELECT * REPLACE (minute + INTERVAL %delta% MINUTE AS minute, %n% AS records) FROM {db}.counts_1m LIMIT 1"
	tamper := func(delta, n string) {
		t.Helper()
		query(t, db, strings.NewReplacer("%delta%", delta, "%n%", n).Replace(wrong))
	}
	tamper("0", "5")  // counted twice
	tamper("7", "3")  // counted, and not stored
	tamper("0", "-1") // stored, and not counted
	r := recount()
	if r.Surplus != 7 || r.Missing != 0 {
		t.Errorf("%d too many and %d missing, want 7 and none", r.Surplus, r.Missing)
	}
	fix(r, 0)
	expect.Equal(t, "counters are after they were fixed", want, counts())
	fix(r, 0) // the outcome is unknown
	expect.Equal(t, "counters are after they were fixed twice", want, counts())

	// Corrupt in the same way again.
	tamper("0", "4")
	tamper("7", "3")
	if again := recount(); again.Surplus != 7 {
		t.Errorf("%d too many, want 7", again.Surplus)
	} else {
		fix(again, 0)
		expect.Not(t, recount().Right(), "another error counts as the fixed one")
		fix(again, 1)
	}
	expect.Equal(t, "counters", want, counts())

	query(t, db, "ALTER TABLE {db}.counts_1m DELETE WHERE minute < '2025-11-21 04:30:00' SETTINGS mutations_sync = 2")
	if r := recount(); r.Missing != 19 || r.Surplus != 0 {
		t.Errorf("%d missing and %d too many, want 19 and none", r.Missing, r.Surplus)
	} else {
		fix(r, 0)
	}
	expect.Equal(t, "counters", want, counts())
}

// TestWhatMayHaveExpiredIsNotCountedAgain: a recount would subtract expired records from the
// counters, and miss those about to expire.
func TestWhatMayHaveExpiredIsNotCountedAgain(t *testing.T) {
	db := open(t)
	line := time.Now().UTC().AddDate(0, 0, -300)
	for seq, days := range []int{-1, 0, 1} {
		insert(t, db, storedOn(t, uint64(seq)+1, line.AddDate(0, 0, days), received, 10))
	}
	query(t, db, "ALTER TABLE {db}.records DELETE WHERE stream_seq = 1 OR stream_seq = 2 AND stream_idx < 5 OR stream_idx = 3 SETTINGS mutations_sync = 2")
	for _, tt := range []struct {
		line                   string
		surplus, rows, counted int64
	}{{"", 16, 14, 30}, {line.AddDate(0, 0, -1).Format(time.DateOnly), 6, 14, 20}, {line.Format(time.DateOnly), 1, 9, 10}, {line.AddDate(0, 0, 1).Format(time.DateOnly), 0, 0, 0}} {
		r, err := db.Recount(t.Context(), "2025-11-21", tt.line)
		expect.Not(t, err != nil || r.Surplus != tt.surplus || r.Missing != 0, "after %q: %+v, %v, want %d too many", tt.line, r, err, tt.surplus)
		rows, err := db.RowsPerDay(t.Context(), tt.line)
		expect.Not(t, err != nil || rows["2025-11-21"] != tt.rows, "after %q: %v rows, %v, want %d", tt.line, rows, err, tt.rows)
		counted, err := db.CountedPerDay(t.Context(), tt.line)
		expect.Not(t, err != nil || counted["2025-11-21"] != tt.counted, "after %q: %v counted, %v, want %d", tt.line, counted, err, tt.counted)
		if n, err := db.RowsBefore(t.Context(), 0, 0, 4, tt.line); err != nil || int64(n) != tt.rows {
			t.Errorf("after %q: %d rows before message 4, %v, want %d", tt.line, n, err, tt.rows)
		}
	}
	days, err := db.RowsByStoredDay(t.Context(), 0, 0, 3, line.AddDate(0, 0, -1).Format(time.DateOnly))
	want := map[string]uint64{line.Format(time.DateOnly): 5, line.AddDate(0, 0, 1).Format(time.DateOnly): 9}
	if diff := cmp.Diff(want, days); err != nil || diff != "" {
		t.Errorf("by stored day: %v (-want +got):\n%s", err, diff)
	}
}
