package main

import (
	"fmt"
	"math"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func TestTheMedianIsJudged(t *testing.T) {
	tests := []struct {
		name   string
		goal   *Goal
		runs   []float64
		median float64
		want   string
	}{
		{"no goal, no verdict", nil, []float64{1}, 1, ""},
		{"at most, met", atMost(3, 0), []float64{9, 3, 1}, 3, "yes"},
		{"at most, missed", atMost(3, 2), []float64{1, 3.01, 4}, 3.01, "**no**"},
		{"at most, stretch met", atMost(3, 2), []float64{2, 2, 9}, 2, "yes, stretch too"},
		{"at least, missed", atLeast(200, 300), []float64{100, 250}, 175, "**no**"},
		{"at least, stretch met", atLeast(200, 300), []float64{300, 250, 400, 350}, 325, "yes, stretch too"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := Row{Goal: tt.goal, Runs: tt.runs}
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
		if got := number(v); got != want {
			t.Errorf("%v is written %q, want %q", v, got, want)
		}
	}
}

func TestAQuantileIsInterpolatedInItsBucket(t *testing.T) {
	metrics := map[string]float64{`s_bucket{le="0.5"}`: 50, `s_bucket{le="1"}`: 90, `s_bucket{le="+Inf"}`: 100, "s_count": 100}
	for q, want := range map[float64]float64{0.25: 0.25, 0.5: 0.5, 0.7: 0.75, 0.9: 1, 0.99: math.Inf(1)} {
		expect.Equal(t, fmt.Sprint("quantile ", q), want, bucketQuantile(metrics, "s", q))
	}
}

func TestARecordIsFreshWhenItsMessageIsSeen(t *testing.T) {
	at := func(ns int64) time.Time { return time.Unix(0, ns) }
	seen := []sight{{at(0), 100}, {at(10), 100}, {at(20), 130}, {at(30), 130}, {at(40), 200}}
	messages := []message{{at(1), 10}, {at(2), 20}, {at(5), 69}, {at(15), 1}} // 110, 130, 199, 200
	all, err := waits(seen, messages)
	fatal.If(t, err)
	for q, want := range map[float64]time.Duration{0.1: 18, 0.3: 19, 0.31: 25, 0.32: 35, 1: 35} {
		if got := quantile(all, q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if _, err := waits(seen[:4], messages); err == nil {
		t.Error("records that were never queryable have a freshness")
	}
}
