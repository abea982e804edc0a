package warehouse_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/warehouse"
)

func TestCountsPerLaneAndMinute(t *testing.T) {
	db := open(t)
	query(t, db, "SYSTEM STOP MERGES {db}.records")
	insert := func(lane int, seq uint64, late time.Duration, n int, token string) {
		t.Helper()
		b := block(t, lane, seq, jobs(int(seq)*100, n)...)
		for i := range b.Columns.ReceivedAt {
			b.Columns.ReceivedAt[i] += late.Milliseconds()
		}
		b.Claim.Token = token
		if err := db.Insert(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	insert(0, 1, 0, 10, "a")
	insert(0, 2, 30*time.Second, 20, "b")
	insert(0, 3, 90*time.Second, 30, "c")
	insert(0, 3, 90*time.Second, 30, "the same again under another token")
	insert(0, 9, 90*time.Second, 5, "outside of what is asked for")
	insert(1, 2, 0, 7, "another lane")

	got, err := db.Counts(t.Context(), 0, 1, 8)
	if err != nil {
		t.Fatal(err)
	}
	want := []warehouse.Count{
		{Lane: 0, Minute: received, Rows: 30, Distinct: 30, First: 1, Last: 2},
		{Lane: 0, Minute: received.Add(time.Minute), Rows: 60, Distinct: 30, First: 3, Last: 3},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Counts (-want +got):\n%s", diff)
	}
	for lane, want := range []uint64{9, 2, 0} {
		if got, err := db.LastSeq(t.Context(), lane); err != nil || got != want {
			t.Errorf("LastSeq of lane %d: got %d, %v, want %d", lane, got, err, want)
		}
	}
}

func TestStoredCountsOnlyTheRowsOfTheClaim(t *testing.T) {
	db := open(t)
	b := block(t, 0, 5, jobs(1, 10)...)
	if err := db.Insert(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		from, to int
		want     uint64
	}{{0, 0, 10}, {0, 10, 10}, {3, 7, 4}, {9, 10, 1}} {
		t.Run(fmt.Sprintf("rows %d to %d", tt.from, tt.to), func(t *testing.T) {
			b.Claim.From, b.Claim.To = tt.from, tt.to
			if got, err := db.Stored(t.Context(), b); err != nil || got != tt.want {
				t.Errorf("got %d, %v, want %d", got, err, tt.want)
			}
		})
	}
	other := block(t, 1, 5, jobs(1, 10)...)
	if got, err := db.Stored(t.Context(), other); err != nil || got != 0 {
		t.Errorf("another lane: got %d, %v, want 0", got, err)
	}
}
