//go:build !race

package warehouse_test

import (
	"testing"

	"sluice/pkg/benchtest"
)

// TestBaseline is not for the race detector, which makes pools forget.
func TestBaseline(t *testing.T) {
	benchtest.Baseline(t, "^BenchmarkEncode$", 20, *update)
}
