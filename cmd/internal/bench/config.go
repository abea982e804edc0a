package main

import (
	"cmp"
	"errors"
	"io"
	"time"
)

// config says what to measure and where to write it. It is the command line.
type config struct {
	Parts        []string `arg:"" optional:"" name:"part" enum:"goals,capacity,scaling,questions" help:"What to measure: goals, capacity (what sluice capacity reckons with), scaling, questions (what those of analysts cost). Default: capacity, goals, scaling."`
	Runs         int      `default:"3" help:"Runs of each row, after a warm-up."`
	Records      int64    `help:"Records of one run, 1000000 unless given; of questions 20000000, which are asked at a tenth of them too."`
	Out          string   `type:"path" default:"docs" help:"Folder that gets performance.md; the other pages go to performance/ in it."`
	Coefficients string   `type:"path" default:"pkg/capacity/coefficients.json" help:"File that gets what sluice capacity reckons with."`

	Short bool `help:"Only try whether all can be measured, in half a minute: the figures say little."`

	command string    // how this was started, for the pages
	log     io.Writer // gets a line per run
}

// plan is what config means in detail.
type plan struct {
	runs        int
	records     int64
	many        int64         // records of what is measured on full tables
	steps       []int64       // of them, those at which questions are asked
	asks        int           // of a question
	warmUp      int64         // records before the first run
	cold        bool          // only the first load of all warms up
	paced       time.Duration // of a run at a given rate
	small       time.Duration // of a run of small requests
	point       time.Duration // of a run of a scaling table
	settle      time.Duration // at most, for merges to end
	lanes       []int
	ingesters   []int
	batches     []int
	connections []int
	loads       int           // of those for pkg/capacity
	load        time.Duration // of a run of one of them; twice as long at a given rate
}

func (c *config) plan() (plan, error) {
	if c.Short {
		return plan{
			runs: 1, records: 20_000, many: 30_000, steps: []int64{30_000}, asks: 1, warmUp: 5_000, cold: true, paced: time.Second, small: 200 * time.Millisecond,
			point: 150 * time.Millisecond, settle: time.Second,
			lanes: []int{1}, ingesters: []int{1, 2}, batches: []int{1000}, connections: []int{16},
			loads: 5, load: 200 * time.Millisecond,
		}, nil
	}
	if c.Runs < 1 || c.Records < 0 {
		return plan{}, errors.New("at least one run and one record are needed")
	}
	records, many := cmp.Or(c.Records, 1_000_000), cmp.Or(c.Records, 20_000_000)
	return plan{
		runs: c.Runs, records: records, many: many, steps: []int64{many / 10, many}, asks: 5, warmUp: records / 4, paced: 10 * time.Second, small: 5 * time.Second,
		point: 3 * time.Second, settle: 20 * time.Second,
		lanes: []int{1, 2, 4}, ingesters: []int{1, 2}, batches: []int{1, 10, 100, 1000, 10_000}, connections: []int{1, 8, 64, 256, 1000},
		loads: len(loads), load: 3 * time.Second,
	}, nil
}
