package run_test

import (
	"strings"
	"testing"

	"sluice/cmd/internal/run"
)

func TestTooLittleMemoryIsRefused(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "off") // nothing is set in this process
	if err := run.BoundMemory(64<<20 - 1); err == nil || !strings.Contains(err.Error(), "--memory") {
		t.Errorf("got %v, want an error that names --memory", err)
	}
	if err := run.BoundMemory(64 << 20); err != nil {
		t.Error(err)
	}
}
