package simulator

import "time"

// Config says which engine to play.
type Config struct {
	Seed       uint64        // decides everything but times, keys and positions
	Start      time.Time     // of the first record; default 2025-11-21 05:00 UTC
	Every      time.Duration // between the beginnings of two instances; default 20 ms
	Rush       time.Time     // from then on RushEvery is between them; default never
	RushEvery  time.Duration
	Partitions int   // default 3
	Instances  int   // to begin, called ones not counted; default without end
	UnderWay   int   // at most, before another one begins; default 1000
	First      int64 // first position and first key of each partition; default 1, so that two engines have equal ones

	// Haste divides the time that jobs, people, timers and messages take, so
	// that few instances are under way at a high rate. Default 1.
	Haste float64

	Commands bool // export commands and rejections too, as an exporter can be told to
	NoIDs    bool // leave out the id, as Camunda's own exporters do
	Tenants  []string
	Prefix   string // of the ids of processes

	// Truth is filled when it is not nil. Without it the memory that an engine
	// takes is bounded by UnderWay.
	Truth *Truth
}

// withDefaults fills in what is not given.
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
