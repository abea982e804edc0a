package warehouse_test

import (
	"fmt"
	"testing"
)

func TestTheLastMessageOfALaneIsFound(t *testing.T) {
	db := open(t)
	for _, at := range []struct {
		lane int
		seq  uint64
	}{{0, 9}, {0, 3}, {1, 2}} {
		if err := db.Insert(t.Context(), block(t, at.lane, at.seq, jobs(int(at.seq)*100, 3)...)); err != nil {
			t.Fatal(err)
		}
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
