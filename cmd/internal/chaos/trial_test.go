package main_test

import (
	"bytes"
	"testing"
	"time"

	trial "sluice/cmd/internal/chaos"
)

func TestChaos(t *testing.T) {
	t.Parallel()
	programs := t.TempDir()
	if err := trial.Build(t.Context(), programs); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]func(*testing.T, string){
		"for half a minute":      forHalfAMinute,
		"clocks and frozen apis": clocksAndFrozenApis,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, programs)
		})
	}
}

// forHalfAMinute is `make chaos` in small: every kind of fault that needs one NATS
// server and no patience, 34 of them in half a minute, under a moderate load.
func forHalfAMinute(t *testing.T, programs string) {
	var journal bytes.Buffer
	result, err := trial.Run(t.Context(), trial.Config{
		Bin: programs, For: 30 * time.Second, Seed: 5, Rate: 2000, Every: time.Second, Journal: &journal,
	})
	t.Log(result)
	if err != nil {
		t.Fatalf("%s\n%v", journal.String(), err)
	}
	if result.Acked == 0 || result.Kills == 0 || result.Stops == 0 {
		t.Errorf("%s\nit has shown nothing", journal.String())
	}
}
