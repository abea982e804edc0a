package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// What can be measured by itself, for config.Only.
const (
	onlyGoals    = "goals"
	onlyAgain    = "again" // of the goals, records that are sent again
	onlyScaling  = "scaling"
	onlyCapacity = "capacity" // what sluice capacity reckons with
	onlyDelay    = "delay"    // one lane, when ClickHouse answers later: a page of its own
)

// config says what to measure and where to write it. It is the command line.
type config struct {
	Only         string `enum:",goals,again,scaling,capacity,delay" default:"" help:"Measure only the goals, of these only records that are sent again, only how it scales, or only what sluice capacity reckons with; or how fast one lane is when ClickHouse answers later, which writes performance/delay.md and no other page."`
	Runs         int    `default:"3" help:"Runs of each row, after a warm-up."`
	Records      int64  `default:"1000000" help:"Records of one run; runs that last for a time do not count them."`
	Out          string `type:"path" default:"docs" help:"Folder that gets performance.md, and the plots in performance/."`
	Coefficients string `type:"path" default:"pkg/capacity/coefficients.json" help:"File that gets what sluice capacity reckons with."`

	Short bool `help:"Only try whether all can be measured, in half a minute: the figures say little."`

	command string    // how this was started, for the page
	log     io.Writer // gets a line per run
}

// plan is what config means in detail.
type plan struct {
	runs        int
	records     int64
	blockRows   int           // of a block, where a lane is emptied
	warmUp      int64         // records before the first run
	cold        bool          // only the first load of all warms up
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

func (c *config) plan() (plan, error) {
	if all := []string{onlyGoals, onlyAgain, onlyScaling, onlyCapacity, onlyDelay}; c.Only != "" && !slices.Contains(all, c.Only) {
		return plan{}, fmt.Errorf("there are %s, no %s", strings.Join(all, ", "), c.Only)
	}
	if c.Short {
		return plan{
			runs: 2, records: 30_000, blockRows: 3_000, warmUp: 5_000, cold: true, paced: time.Second, small: 200 * time.Millisecond,
			point: 150 * time.Millisecond, settle: time.Second, watch: 100 * time.Millisecond,
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
