package measure

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// What can be measured by itself, for Config.Only.
const (
	Goals    = "goals"
	Again    = "again" // of the goals, records that are sent again
	Scaling  = "scaling"
	Capacity = "capacity" // what sluice capacity reckons with
	Delay    = "delay"    // one lane, when ClickHouse answers later: a page of its own
)

// Config says what to measure and where to write it.
type Config struct {
	Only    string    // Goals, Again, Scaling, Capacity or Delay; all but Delay when empty
	Runs    int       // of each row, after a warm-up
	Records int64     // of a run that is not bounded by time
	Out     string    // folder of performance.md; the plots go to performance/ in it
	Command string    // how this was started, for the page
	Short   bool      // few records and few points: that all can be measured, not how much it is
	Log     io.Writer // gets a line per run; default none

	Coefficients string // file that gets what pkg/capacity reckons with
}

// plan is what Config means in detail.
type plan struct {
	runs        int
	records     int64
	blockRows   int           // of a block, where a lane is emptied
	warmUp      int64         // records before the first run
	paced       time.Duration // of a run at a given rate
	small       time.Duration // of a run of small requests
	point       time.Duration // of a run of a scaling table
	settle      time.Duration // at most, for merges to end
	watch       time.Duration // of the machine, for pauses, before the start
	lanes       []int
	ingesters   []int
	batches     []int
	connections []int
	loads       int           // of those for pkg/capacity
	load        time.Duration // of a run of one of them; twice as long at a given rate
}

func (c *Config) plan() (plan, error) {
	if c.Log == nil {
		c.Log = io.Discard
	}
	if all := []string{Goals, Again, Scaling, Capacity, Delay}; c.Only != "" && !slices.Contains(all, c.Only) {
		return plan{}, fmt.Errorf("there are %s, no %s", strings.Join(all, ", "), c.Only)
	}
	if c.Short {
		return plan{
			runs: 2, records: 30_000, blockRows: 3_000, warmUp: 5_000, paced: time.Second, small: 500 * time.Millisecond,
			point: 300 * time.Millisecond, settle: time.Second, watch: 100 * time.Millisecond,
			lanes: []int{1}, ingesters: []int{1, 2}, batches: []int{1, 1000}, connections: []int{1, 16},
			loads: 5, load: 200 * time.Millisecond,
		}, nil
	}
	if c.Runs < 1 || c.Records < 1 {
		return plan{}, errors.New("at least one run and one record are needed")
	}
	return plan{
		runs: c.Runs, records: c.Records, blockRows: 100_000, warmUp: c.Records / 4, paced: 10 * time.Second, small: 5 * time.Second,
		point: 3 * time.Second, settle: 20 * time.Second, watch: 20 * time.Second,
		lanes: []int{1, 2, 4}, ingesters: []int{1, 2}, batches: []int{1, 10, 100, 1000, 10_000}, connections: []int{1, 8, 64, 256, 1000},
		loads: len(loads), load: 3 * time.Second,
	}, nil
}
