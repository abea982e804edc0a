package measure_test

import (
	"testing"

	"sluice/cmd/internal/bench/measure"
)

func TestTheMedianIsJudged(t *testing.T) {
	tests := []struct {
		name   string
		goal   *measure.Goal
		runs   []float64
		median float64
		want   string
	}{
		{"no goal, no verdict", nil, []float64{1}, 1, ""},
		{"at most, met", measure.AtMost(3, 0), []float64{9, 3, 1}, 3, "yes"},
		{"at most, missed", measure.AtMost(3, 2), []float64{1, 3.01, 4}, 3.01, "**no**"},
		{"at most, stretch met", measure.AtMost(3, 2), []float64{2, 2, 9}, 2, "yes, stretch too"},
		{"at least, missed", measure.AtLeast(200, 300), []float64{100, 250}, 175, "**no**"},
		{"at least, stretch met", measure.AtLeast(200, 300), []float64{300, 250, 400, 350}, 325, "yes, stretch too"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := measure.Row{Goal: tt.goal, Runs: tt.runs}
			if r.Median() != tt.median || r.Verdict() != tt.want {
				t.Errorf("median %v, verdict %q; want %v, %q", r.Median(), r.Verdict(), tt.median, tt.want)
			}
		})
	}
}

func TestNumbersHaveThreeDigitsOrSo(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 3: "3", 0.0514: "0.051", 2.346: "2.35", 23.46: "23.5", 234.6: "235", 1000: "1 000", 231542.4: "231 542", 1234567: "1 234 567", -1234.5: "-1 234",
	} {
		if got := measure.Number(v); got != want {
			t.Errorf("%v is written %q, want %q", v, got, want)
		}
	}
}

func TestARecordIsFreshWhenItsMessageIsSeen(t *testing.T) {
	seen := []measure.Sight{{0, 100}, {10, 100}, {20, 130}, {30, 130}, {40, 200}}
	messages := []measure.Message{{1, 10}, {2, 20}, {5, 69}, {15, 1}} // 110, 130, 199, 200
	for q, want := range map[float64]int64{0.1: 18, 0.3: 19, 0.31: 25, 0.32: 35, 1: 35} {
		if got, err := measure.Freshness(seen, messages, q); err != nil || got != want {
			t.Errorf("quantile %v is %v (%v), want %v", q, got, err, want)
		}
	}
	if _, err := measure.Freshness(seen[:4], messages, 0.5); err == nil {
		t.Error("records that nobody saw have a freshness")
	}
}
