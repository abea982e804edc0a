package trial_test

import (
	"bytes"
	"testing"
	"time"

	"sluice/cmd/internal/chaos/trial"
)

// TestChaosForAMinute is `make chaos` in small: every kind of fault that needs
// one NATS server, for less than a minute, under a moderate load.
func TestChaosForAMinute(t *testing.T) {
	var journal bytes.Buffer
	result, err := trial.Run(t.Context(), trial.Config{
		For: 45 * time.Second, Seed: 5, Rate: 2000, Every: 1500 * time.Millisecond, Journal: &journal,
	})
	t.Log(result)
	if err != nil {
		t.Fatalf("%v\n%s", err, journal.String())
	}
	if result.Acked == 0 || result.Kills == 0 || result.Stops == 0 {
		t.Errorf("it has shown nothing:\n%s", journal.String())
	}
}
