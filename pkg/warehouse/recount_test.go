package warehouse_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"sluice/pkg/warehouse"
)

// TestCountersAreMendedByDifferences breaks the counters of a day, and mends
// them as a recount does, crashes among it.
func TestCountersAreMendedByDifferences(t *testing.T) {
	db := open(t)
	if err := db.Insert(t.Context(), block(t, 0, 1, jobs(1, 50)...)); err != nil {
		t.Fatal(err)
	}
	const day = "2025-11-21"
	recount := func() *warehouse.Recount {
		t.Helper()
		r, err := db.Recount(t.Context(), day)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	mend := func(r *warehouse.Recount, times int) {
		t.Helper()
		if err := db.Mend(t.Context(), r, times); err != nil {
			t.Fatal(err)
		}
	}
	counts := func() string {
		return query(t, db, "SELECT count(), sum(n) FROM (SELECT minute, sum(records) AS n FROM {db}.counts_1m GROUP BY minute HAVING n != 0)")
	}
	want := counts()
	if r := recount(); !r.Right() {
		t.Fatalf("counters that are right are not: %+v", r)
	}

	wrong := "INSERT INTO {db}.counts_1m SELECT * REPLACE (minute + INTERVAL %delta% MINUTE AS minute, %n% AS records) FROM {db}.counts_1m LIMIT 1"
	tamper := func(delta, n string) {
		t.Helper()
		query(t, db, strings.NewReplacer("%delta%", delta, "%n%", n).Replace(wrong))
	}
	tamper("0", "5")  // counted too often
	tamper("7", "3")  // counted, and not there
	tamper("0", "-1") // and not counted
	r := recount()
	if r.Surplus != 7 || r.Missing != 0 {
		t.Errorf("%d too many and %d missing, want 7 and none", r.Surplus, r.Missing)
	}
	mend(r, 0)
	if got := counts(); got != want {
		t.Errorf("counters are %s after they were mended, want %s", got, want)
	}
	mend(r, 0) // its end was not heard of
	if got := counts(); got != want {
		t.Errorf("counters are %s after they were mended twice, want %s", got, want)
	}

	// Wrong again in the very same way.
	tamper("0", "4")
	tamper("7", "3")
	if again := recount(); again.Surplus != 7 {
		t.Errorf("%d too many, want 7", again.Surplus)
	} else {
		mend(again, 0)
		if recount().Right() {
			t.Error("another fault was taken for the one that was mended")
		}
		mend(again, 1)
	}
	if got := counts(); got != want {
		t.Errorf("counters are %s, want %s", got, want)
	}

	query(t, db, "ALTER TABLE {db}.counts_1m DELETE WHERE minute < '2025-11-21 04:30:00' SETTINGS mutations_sync = 2")
	if r := recount(); r.Missing != 19 || r.Surplus != 0 {
		t.Errorf("%d missing and %d too many, want 19 and none", r.Missing, r.Surplus)
	} else {
		mend(r, 0)
	}
	if got := counts(); got != want {
		t.Errorf("counters are %s, want %s", got, want)
	}
}

// TestWhatMayHaveExpiredIsNotCountedAgain: records that are gone would be taken out of the
// counters, and those that are about to go would be lost from them.
func TestWhatMayHaveExpiredIsNotCountedAgain(t *testing.T) {
	db := open(t)
	for seq, days := range []int{395, 0} {
		insert(t, db, storedOn(t, uint64(seq)+1, time.Now().AddDate(0, 0, -days), received, 10))
	}
	query(t, db, "ALTER TABLE {db}.records DELETE WHERE stored_at < now() - INTERVAL 390 DAY OR stream_idx = 3 SETTINGS mutations_sync = 2")
	r, err := db.Recount(t.Context(), "2025-11-21")
	if err != nil || r.Surplus != 1 || r.Missing != 0 {
		t.Errorf("got %+v, %v, want 1 too many of those that are kept", r, err)
	}
	for name, perDay := range map[string]func(context.Context) (map[string]int64, error){"rows": db.RowsPerDay, "counted": db.CountedPerDay} {
		want := map[string]int64{"rows": 9, "counted": 10}[name]
		if days, err := perDay(t.Context()); err != nil || days["2025-11-21"] != want {
			t.Errorf("%s: %v, %v, want %d", name, days, err, want)
		}
	}
}
