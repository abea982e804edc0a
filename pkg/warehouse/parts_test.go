package warehouse_test

import (
	"fmt"
	"testing"
	"time"

	"sluice/pkg/warehouse"
)

// TestPartsAreCountedAsTheEngineMakesThem inserts records of several months, in
// any order, and compares the metric with the parts there are.
func TestPartsAreCountedAsTheEngineMakesThem(t *testing.T) {
	db := open(t)
	query(t, db, "SYSTEM STOP MERGES {db}.records")
	at := func(year int, month time.Month, day int) string {
		return fmt.Sprintf(`{"id":"%d-%d-%d","timestamp":%d}`, year, month, day, time.Date(year, month, day, 0, 0, 0, 0, time.UTC).UnixMilli())
	}
	end := time.Date(2025, 4, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	b := block(t, 0, 1, at(2025, 3, 31), at(2024, 3, 1), at(2025, 3, 1), at(2025, 4, 1), at(2024, 3, 31),
		fmt.Sprintf(`{"id":"last","timestamp":%d}`, end-1), `{"id":"none"}`)
	if err := db.Insert(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	made := query(t, db, "SELECT toString(count()) FROM system.parts WHERE database = '{db}' AND table = 'records' AND active")
	if got := warehouse.Months(b.Columns.TS); fmt.Sprint(got) != made || made != "4" {
		t.Errorf("counted %d, made %s, want 4", got, made)
	}
}
