package warehouse_test

import "testing"

// TestATableForgetsItsTokens is what docs/reliability.md tells operators of a
// server of their own to do when a token has no rows: the table forgets it,
// the targets of its views do not.
func TestATableForgetsItsTokens(t *testing.T) {
	db := open(t)
	b := block(t, 0, 1, jobs(1, 5)...)
	for range 2 {
		if err := db.Insert(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := totals(t, db), "5\t5\t5"; got != want {
		t.Fatalf("rows, counted, jobs: got %s, want %s", got, want)
	}
	query(t, db, "ALTER TABLE {db}.records MODIFY SETTING non_replicated_deduplication_window = 0")
	query(t, db, "ALTER TABLE {db}.records MODIFY SETTING non_replicated_deduplication_window = 100000")
	if err := db.Check(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if err := db.Insert(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if got, want := totals(t, db), "10\t5\t5"; got != want {
		t.Errorf("rows, counted, jobs: got %s, want %s", got, want)
	}
}
