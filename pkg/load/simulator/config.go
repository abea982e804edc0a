package simulator

import "time"

type Config struct {
	Seed       uint64        // of everything except times, keys and positions
	Start      time.Time     // of the first record; default 2025-11-21 05:00 UTC
	Every      time.Duration // interval of new instances; default 20 ms
	Rush       time.Time     // from then on the interval is RushEvery; default never
	RushEvery  time.Duration
	Partitions int   // default 3
	Instances  int   // number to start, called ones excluded; default unlimited
	UnderWay   int   // limit of running instances; default 1000
	First      int64 // first position and first key of each partition; default 1, which makes engines collide

	// Haste divides the durations of jobs, people, timers, and messages, so that few
	// instances run at a high rate. Default 1.
	Haste float64

	Commands bool // export commands and rejections too, an option of exporters
	NoIDs    bool // omit the id, like Camunda's own exporters
	Tenants  []string
	Prefix   string // of the ids of processes

	// Truth is filled unless nil. Without it UnderWay bounds the memory of an engine.
	Truth *Truth
}

func (c Config) withDefaults() Config {
	if c.Start.IsZero() {
		c.Start = time.Date(2025, 11, 21, 5, 0, 0, 0, time.UTC)
	}
	if c.Every <= 0 {
		c.Every = 20 * time.Millisecond
	}
	if c.Partitions <= 0 {
		c.Partitions = 3
	}
	if c.UnderWay <= 0 {
		c.UnderWay = 1000
	}
	if c.First <= 0 {
		c.First = 1
	}
	if c.Haste <= 0 {
		c.Haste = 1
	}
	if len(c.Tenants) == 0 {
		c.Tenants = []string{"<default>"}
	}
	return c
}
