package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// planned returns the schedule of a run as text.
func planned(t *testing.T, cfg Config, servers int) (lines []string) {
	t.Helper()
	cfg.NATS, cfg.RepeatWindow = servers, 5*time.Minute
	d, err := deployment.New(cfg.deployment(t.TempDir(), cfg.posts().sources()))
	fatal.If(t, err)
	defer d.Close()
	for _, f := range plan(cfg, d) {
		lines = append(lines, f.at.Round(time.Millisecond).String()+" "+f.Name())
	}
	return lines
}

func TestPlan(t *testing.T) {
	cfg := Config{For: 30 * time.Minute, Seed: 7, Every: 2500 * time.Millisecond}
	first := planned(t, cfg, 1)
	t.Run("the same seed has the same schedule", func(t *testing.T) {
		expect.Not(t, !slices.Equal(first, planned(t, cfg, 1)), "two schedules of the same seed differ")
	})
	t.Run("another seed has another schedule", func(t *testing.T) {
		other := cfg
		other.Seed++
		expect.Not(t, slices.Equal(first, planned(t, other, 1)), "two seeds have the same schedule")
	})
	for _, servers := range []int{1, 3} {
		text := strings.Join(planned(t, cfg, servers), "\n") + "\n"
		if n := strings.Count(text, " kill"); n < 250 {
			t.Errorf("%d servers: %d kills in half an hour, want at least 250", servers, n)
		}
		want := []string{"kill api for", "kill ingester-2", "kill engine", "kill nats", "pause api-2", "pause engine", "restart nats",
			"cut clients→api", "delay api→nats", "stall ingester→engine", "kill-in-insert engine", "kill-in-entry nats", "add-lane", "spread engine-a",
			"step-clock nats by 10m0s", "step-clock nats by -10m0s", "step-clock api by", "step-clock api-2", "step-clock operator",
			"freeze api for 5m50s", "add-in-retry", "fill-lane FLOW_0", "fill-lane FLOW_1"}
		if servers == 3 {
			want = append(want, "kill-leader", "wipe nats\n", "wipe nats-3", "kill-in-entry nats-3", "step-clock nats-3")
		}
		for _, fault := range want {
			expect.Not(t, !strings.Contains(text, fault), "%d servers: no %q in half an hour", servers, fault)
		}
		expect.Not(t, servers == 1 && (strings.Contains(text, "wipe") || strings.Contains(text, "kill-leader")), "the only server is wiped, which loses what it had, or is the leader")
	}
	t.Run("a run with an outage has no other faults", func(t *testing.T) {
		got := planned(t, Config{For: 12 * time.Minute, Outage: 10 * time.Minute}, 1)
		if want := []string{"1m0s outage engine for 10m0s"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
