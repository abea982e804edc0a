package trial

import (
	"io"
	"time"
)

// Config says what to break and for how long.
type Config struct {
	For            time.Duration // time under faults; default 30 min
	Seed           uint64        // of faults and records
	NATS           int           // servers, 1 or 3; default 1
	Rate           float64       // records per second; default 6000
	Every          time.Duration // mean time between two faults; default 2.5 s
	StreamMaxBytes int64         // disk budget of a lane; default 1 GiB
	SmallDisk      bool          // fill the disks of NATS and of the engine too; needs root
	Brokers        bool          // nobody posts but the exporters of a Camunda cluster of three partitions
	Outage         time.Duration // when set, the only fault: the engine is away for so long
	RepeatWindow   time.Duration // in which the programs recognise a repeated request; default 5 min: void is what lands half of it late, and a step of NATS's clock counts for 30 s
	History        time.Duration // that the lanes keep what is stored; default a sixth of For
	Bin            string        // folder of the programs, by Build; built anew when empty
	Dir            string        // of data and logs; default a temporary one
	Keep           bool          // keep Dir also when all is well
	Journal        io.Writer     // gets one line per fault; default none
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
