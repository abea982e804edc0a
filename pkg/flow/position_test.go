package flow_test

import (
	"testing"

	"sluice/pkg/flow"
)

func TestDamagedRunsAreRefused(t *testing.T) {
	for _, text := range []string{"!", "AA", "/w", "AAA", "gICAgICAgICAgIA"} {
		if runs, err := flow.ParseRuns(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, runs)
		}
	}
}
