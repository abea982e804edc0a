package main

import (
	"slices"
	"testing"

	"github.com/alecthomas/kong"

	"sluice/pkg/capacity"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestWhatCapacityAsksByDefault: docs/scaling.md is generated with these defaults.
func TestWhatCapacityAsksByDefault(t *testing.T) {
	var c capacityCmd
	parser, err := kong.New(&c)
	if err == nil {
		_, err = parser.Parse(nil)
	}
	fatal.If(t, err)
	expect.Equal(t, "it asks", capacity.Default, c.ask(0))
	if want := []float64{10_000, 100_000, 1_000_000, 10_000_000}; !slices.Equal(c.Rate, want) {
		t.Errorf("it asks for %v records per second, want %v", c.Rate, want)
	}
}
