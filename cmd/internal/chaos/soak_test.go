package main

import (
	"bytes"
	"testing"
	"time"

	"sluice/pkg/fatal"
	"sluice/pkg/programtest"
)

// TestASoakForTwentySeconds is a short `make soak`.
func TestASoakForTwentySeconds(t *testing.T) {
	var table bytes.Buffer
	err := soak(t.Context(), Soak{
		For: 20 * time.Second, Rate: 1000, Every: time.Second, Seed: 1, Out: &table, Build: programtest.BuildPlain,
		Freshness: 10 * time.Second, // other tests may use the processors
	})
	t.Logf("\n%s", table.String())
	fatal.If(t, err)
}

func TestWhatGrowsIsNamed(t *testing.T) {
	for name, tt := range map[string]struct {
		add  float64 // per sample
		want bool
	}{
		"nothing grows":           {0, false},
		"a mebibyte each time":    {1 << 20, false},
		"ten mebibytes each time": {10 << 20, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := growth(growing("api rss", 100<<20, tt.add)); (len(got) > 0) != tt.want {
				t.Errorf("named %q", got)
			}
		})
	}
	if got := growth(growing("lag", 0, 1000)); len(got) != 1 {
		t.Errorf("a growing lag is named %q", got)
	}
}

// growing returns samples in which one column grows linearly.
func growing(column string, first, more float64) (samples []sample) {
	for i := range 30 {
		samples = append(samples, sample{column: first + float64(i)*more})
	}
	return samples
}

func TestTheQuantileIsThatOfItsBucket(t *testing.T) {
	page := map[string]float64{
		`x_bucket{le="0.1"}`: 50, `x_bucket{le="0.5"}`: 98, `x_bucket{le="1"}`: 99, `x_bucket{le="+Inf"}`: 100, `x_count`: 100,
		`xy_bucket{le="0.1"}`: 100,
	}
	for q, want := range map[float64]float64{0.5: 0.1, 0.98: 0.5, 0.99: 1} {
		if got := newHistogram(page, "x").quantile(q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}
