package measure_test

import (
	"slices"
	"testing"
	"time"

	"sluice/cmd/internal/bench/measure"
)

func TestPausesAreWhatIsLongerThanTheTurnOfAnother(t *testing.T) {
	const ms = time.Millisecond
	got := measure.Gaps([]time.Duration{0, ms, 2 * ms, 5 * ms, 7 * ms, 57 * ms, 58 * ms})
	if want := []time.Duration{3 * ms, 50 * ms}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestPausesReadWell(t *testing.T) {
	for want, p := range map[string]measure.Pauses{
		"none":                                 {},
		"2, together 53 ms, the longest 50 ms": {Count: 2, Sum: 53 * time.Millisecond, Longest: 50 * time.Millisecond},
	} {
		if got := p.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
