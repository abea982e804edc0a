package steady

import (
	"errors"
	"io"
	"time"
)

// Config says how hard and how long. Everything but Out is needed.
type Config struct {
	For       time.Duration // time of posting
	Rate      float64       // records per second
	Every     time.Duration // time between two samples
	Freshness time.Duration // bound of the time from acceptance to query, for 99 of 100 records of the run
	Seed      uint64        // of the records
	Out       io.Writer     // gets one line per sample; default none
}

// leastSamples is what a judgement of growth needs.
const leastSamples = 9

func (c *Config) set() error {
	if c.Out == nil {
		c.Out = io.Discard
	}
	if c.Every <= 0 || c.Rate <= 0 || c.Freshness <= 0 || c.Seed == 0 {
		return errors.New("a rate, an interval, a bound of freshness and a seed are needed")
	}
	if c.For < leastSamples*c.Every {
		return errors.New("too short: nine samples are the least that can be judged")
	}
	return nil
}
