//go:build !race

package api_test

import (
	"flag"
	"testing"

	"sluice/pkg/benchtest"
)

var update = flag.Bool("update", false, "write "+benchtest.File)

// TestBaseline is not for the race detector, which makes pools forget.
func TestBaseline(t *testing.T) {
	benchtest.Baseline(t, "^BenchmarkPost$", 200, *update)
}
