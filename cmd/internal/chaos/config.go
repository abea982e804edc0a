package main

import (
	"io"
	"time"
)

// Config says what to break and for how long. It is the command line, and what tests
// set beside it.
type Config struct {
	For            time.Duration `default:"30m" help:"How long to break things under load."`
	Seed           uint64        `help:"Decides faults and records; a new one when 0. The same seed has the same schedule."`
	NATS           int           `name:"nats" enum:"1,3" default:"1" help:"NATS servers: 1, or 3 with three copies of every stream."`
	Rate           float64       `default:"6000" help:"Records per second to post."`
	Every          time.Duration `default:"2.5s" help:"Mean time between two faults."`
	StreamMaxBytes int64         `default:"1073741824" help:"Disk budget of a lane in bytes; little of it makes 429s."`
	SmallDisk      bool          `help:"Fill the disks of NATS and of the engine too. Needs root: it mounts file systems in memory."`
	Brokers        bool          `help:"Only the exporters of a simulated Camunda cluster of three partitions post, as the real ones do; brokers fail too."`
	Outage         time.Duration `help:"Instead of faults at random: stop the engine for so long in the middle of the run."`
	RepeatWindow   time.Duration `default:"5m" help:"Window in which the programs recognise a repeated request, shorter than theirs, so that a run outlives it."`
	History        time.Duration `kong:"-"` // that the lanes keep what is stored; default a sixth of For
	Bin            string        `kong:"-"` // folder of the programs, by Build; built anew when empty
	Dir            string        `type:"path" help:"Folder for data and logs; a temporary one when empty. It stays when something is wrong."`
	Keep           bool          `help:"Keep the folder in any case."`
	Journal        io.Writer     `kong:"-"` // gets one line per fault; default none
}

func (c Config) withDefaults() Config {
	if c.For == 0 {
		c.For = 30 * time.Minute
	}
	if c.NATS == 0 {
		c.NATS = 1
	}
	if c.Rate == 0 {
		c.Rate = 6000
	}
	if c.Every == 0 {
		c.Every = 2500 * time.Millisecond
	}
	if c.StreamMaxBytes == 0 {
		c.StreamMaxBytes = 1 << 30
	}
	if c.RepeatWindow == 0 {
		c.RepeatWindow = 5 * time.Minute
	}
	if c.History == 0 {
		c.History = c.For / 6
	}
	if c.Journal == nil {
		c.Journal = io.Discard
	}
	return c
}
