package main_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	trial "sluice/cmd/internal/chaos"
)

func TestPlan(t *testing.T) {
	cfg := trial.Config{For: 30 * time.Minute, Seed: 7, Every: 2500 * time.Millisecond}
	first := trial.Plan(cfg, 1)
	t.Run("the same seed has the same schedule", func(t *testing.T) {
		if !slices.Equal(first, trial.Plan(cfg, 1)) {
			t.Error("two schedules of the same seed differ")
		}
	})
	t.Run("another seed has another one", func(t *testing.T) {
		other := cfg
		other.Seed++
		if slices.Equal(first, trial.Plan(other, 1)) {
			t.Error("two seeds have the same schedule")
		}
	})
	for _, servers := range []int{1, 3} {
		text := strings.Join(trial.Plan(cfg, servers), "\n")
		if n := strings.Count(text, " kill "); n < 250 {
			t.Errorf("%d servers: %d kills in half an hour, want at least 250", servers, n)
		}
		want := []string{"kill api-1", "kill ingester-2", "kill engine", "kill nats-1", "stop api-2", "stop engine", "restart nats-1",
			"cut clients→api", "delay api-1→nats", "stall ingester-1→engine", "kill in mid-insert engine", "kill in mid-entry nats-1", "add a lane", "spread engine-a",
			"step the clock of nats-1 by 10m0s", "step the clock of nats-1 by -10m0s", "step the clock of api-1", "step the clock of api-2", "step the clock of operator",
			"freeze api-1 for 5m50s", "add a lane in mid-retry", "fill lane FLOW_0", "fill lane FLOW_1"}
		if servers == 3 {
			want = append(want, "kill the leader", "wipe nats-1", "wipe nats-3", "kill in mid-entry nats-3", "step the clock of nats-3")
		}
		for _, fault := range want {
			if !strings.Contains(text, fault) {
				t.Errorf("%d servers: no %q in half an hour", servers, fault)
			}
		}
		if servers == 1 && strings.Contains(text, "wipe") {
			t.Error("the only server is wiped, which loses what it had")
		}
	}
	t.Run("with an outage nothing else is broken", func(t *testing.T) {
		got := trial.Plan(trial.Config{For: 12 * time.Minute, Outage: 10 * time.Minute}, 1)
		if want := []string{"1m0s outage engine for 10m0s"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
