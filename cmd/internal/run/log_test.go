package run_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/cmd/internal/run"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func TestDurationsOfTheLogAreReadable(t *testing.T) {
	var out bytes.Buffer
	run.NewLogger(&out, false).With("component", "nats").Info("done", "a", 25*time.Second+3*time.Millisecond, "b", 1234567*time.Nanosecond, "error", errors.New("why"))
	var line map[string]any
	fatal.If(t, json.Unmarshal(out.Bytes(), &line))
	for key, want := range map[string]string{"component": "nats", "a": "25s", "b": "1ms", "error": "why"} {
		if line[key] != want {
			t.Errorf("%s: got %v, want %s", key, line[key], want)
		}
	}
}

// TestTheLogCannotBeFlooded: repeated lines are dropped and counted.
func TestTheLogCannotBeFlooded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := run.NewLogger(&out, true)
		for i := range 10_000 {
			log.With("component", "nats").Warn(fmt.Sprintf("127.0.0.1:%d - authentication error", i))
			log.Info("request") // Info is not sampled
		}
		expect.Equal(t, "lines of 10000 that say the same", 20, strings.Count(out.String(), "authentication"))
		expect.Equal(t, "lines that are no warnings", 10_000, strings.Count(out.String(), "msg=request"))
		out.Reset()
		log.Error("something else")
		time.Sleep(10 * time.Second)
		log.Warn("127.0.0.1:7 - authentication error")
		if said := out.String(); strings.Count(said, "\n") != 2 || !strings.Contains(said, "left_out=9980") {
			t.Errorf("later: %s", said)
		}
		out.Reset()
		for i := range 5000 {
			log.Warn(strings.Repeat("x", i))
		}
		if got := strings.Count(out.String(), "\n"); got > 300 {
			t.Errorf("%d lines of 5000 that all differ, want at most 300", got)
		}
	})
}
