package main

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/load"
)

func span(partition, first, last int64) load.Range {
	return load.Range{Partition: partition, First: first, Last: last}
}

func TestCompare(t *testing.T) {
	sent := []load.Range{span(1, 1, 100), span(2, 1, 100)}
	for _, tt := range []struct {
		name   string
		acked  []load.Range
		stored []Stretch
		want   Findings
	}{
		{"all is well", []load.Range{span(1, 1, 10)}, []Stretch{{span(1, 1, 10), 1}},
			Findings{Acked: 10, Stored: 10, Unique: 10}},
		{"what was not acknowledged may be stored", []load.Range{span(1, 1, 10)}, []Stretch{{span(1, 1, 15), 1}},
			Findings{Acked: 10, Stored: 15, Unique: 15}},
		{"nothing is stored", []load.Range{span(1, 1, 10), span(2, 3, 4)}, nil,
			Findings{Acked: 12, Lost: 12, LostAt: []load.Range{span(1, 1, 10), span(2, 3, 4)}}},
		{"the middle is lost", []load.Range{span(1, 1, 10)}, []Stretch{{span(1, 8, 12), 1}, {span(1, 1, 3), 1}, {span(1, 5, 5), 1}},
			Findings{Acked: 10, Stored: 9, Unique: 9, Lost: 3, LostAt: []load.Range{span(1, 4, 4), span(1, 6, 7)}}},
		{"of one partition, not of the other", []load.Range{span(1, 1, 5), span(2, 1, 5)}, []Stretch{{span(2, 1, 5), 1}},
			Findings{Acked: 10, Stored: 5, Unique: 5, Lost: 5, LostAt: []load.Range{span(1, 1, 5)}}},
		{"some are doubled, one of them three times", []load.Range{span(1, 1, 10)},
			[]Stretch{{span(1, 1, 4), 1}, {span(1, 5, 6), 2}, {span(1, 7, 7), 3}, {span(1, 8, 10), 1}},
			Findings{Acked: 10, Stored: 14, Unique: 10, Doubled: 4, DoubledAt: []load.Range{span(1, 5, 6), span(1, 7, 7)}}},
		{"what was never acknowledged must not be doubled either", nil, []Stretch{{span(1, 1, 1), 2}},
			Findings{Stored: 2, Unique: 1, Doubled: 1, DoubledAt: []load.Range{span(1, 1, 1)}}},
		{"some were never sent", nil, []Stretch{{span(1, 99, 102), 1}, {span(3, 1, 1), 1}},
			Findings{Stored: 5, Unique: 5, Strangers: 3, StrangersAt: []load.Range{span(1, 101, 102), span(3, 1, 1)}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Compare(tt.acked, sent, tt.stored)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("findings differ (-want +got):\n%s", diff)
			}
			if clean := tt.want.Lost+tt.want.Doubled+tt.want.Strangers == 0; got.Clean() != clean {
				t.Errorf("Clean is %v, want %v", got.Clean(), clean)
			}
		})
	}
}

// TestCompareAgreesWithCounting compares with a count of every single record.
func TestCompareAgreesWithCounting(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			var acked, sent []load.Range
			var stored []Stretch
			var want Findings
			for p := int64(1); p <= 3; p++ {
				for pos := int64(1); pos <= 12; pos++ {
					wasSent := r.IntN(4) > 0
					wasAcked := wasSent && r.IntN(3) > 0
					times := int64(r.IntN(3))
					at := span(p, pos, pos)
					if wasSent {
						sent = append(sent, at)
					}
					if wasAcked {
						acked = append(acked, at)
						want.Acked++
					}
					if times > 0 {
						stored = append(stored, Stretch{Range: at, Times: times})
						want.Stored += times
						want.Unique++
						want.Doubled += times - 1
					}
					if wasAcked && times == 0 {
						want.Lost++
					}
					if !wasSent && times > 0 {
						want.Strangers++
					}
				}
			}
			r.Shuffle(len(stored), func(i, j int) { stored[i], stored[j] = stored[j], stored[i] })
			got := Compare(acked, sent, stored)
			got.LostAt, got.DoubledAt, got.StrangersAt = nil, nil, nil
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("findings differ (-want +got):\n%s", diff)
			}
		})
	}
}
