package main

import (
	"cmp"
	"errors"
	"io"
	"time"
)

type config struct {
	Parts        []string `arg:"" optional:"" name:"part" enum:"goals,capacity,scaling,questions,console,rivals,cost,sustained,half,small,again,outage,trickle,start" help:"Parts to measure: goals, capacity (the coefficients of sluice capacity), scaling, questions (the cost of analyst questions), console (the time of its views, and the cost of ten browsers), which share their records, rivals (other programs); or sections of goals, which are printed only. Default: goals, scaling."`
	Runs         int      `default:"3" help:"Runs of each row, after a warm-up."`
	Records      int64    `help:"Records per run; default 1000000. Questions are measured at 20000000 records and at a tenth of them, the console at 20000000."`
	Backlog      int64    `help:"Records posted during an outage of the ingester; default four times --records."`
	Out          string   `type:"path" default:"docs" help:"Folder for performance.md, and performance/ in it for the other pages."`
	Coefficients string   `type:"path" default:"pkg/capacity/coefficients.json" help:"File for the coefficients of sluice capacity."`

	Short bool `help:"Only check that everything can be measured, in half a minute; the figures are not representative."`

	command string    // command line, for the pages
	log     io.Writer // a line per run
}

// plan has the sizes and durations that follow from config.
type plan struct {
	runs        int
	records     int64
	many        int64         // records of measurements on full tables
	steps       []int64       // numbers of records at which questions are measured
	asks        int           // repetitions of a question
	warmUp      int64         // records before the first run
	cold        bool          // only the first load warms up
	paced       time.Duration // of a run at a given rate
	small       time.Duration // of a run of small requests
	point       time.Duration // of a run of a scaling table
	watched     time.Duration // of a run beside browsers
	pairs       int           // of such runs, with and without, for each of runs
	settle      time.Duration // maximum wait for merges
	lanes       []int
	ingesters   []int
	batches     []int
	connections []int
	loads       int           // number of loads for pkg/capacity
	load        time.Duration // per run of such a load; twice as long at a given rate
	backlog     int64         // records of an outage
	outages     int
	quiet       time.Duration // of a measurement without load, and with little
	trickles    int
	rivals      int64 // records of a run of other programs
}

func (c *config) plan() (plan, error) {
	if c.Short {
		return plan{
			runs: 1, records: 20_000, many: 30_000, steps: []int64{30_000}, asks: 1, warmUp: 5_000, cold: true, paced: time.Second, small: 200 * time.Millisecond,
			point: 150 * time.Millisecond, settle: time.Second, watched: 200 * time.Millisecond, pairs: 1,
			lanes: []int{1}, ingesters: []int{1, 2}, batches: []int{1000}, connections: []int{16},
			loads: 5, load: 200 * time.Millisecond,
			backlog: 20_000, outages: 1, quiet: 2 * time.Second, trickles: 1, rivals: 5_000,
		}, nil
	}
	if c.Runs < 1 || c.Records < 0 {
		return plan{}, errors.New("at least one run and one record are needed")
	}
	records, many := cmp.Or(c.Records, 1_000_000), cmp.Or(c.Records, 20_000_000)
	return plan{
		runs: c.Runs, records: records, many: many, steps: []int64{many / 10, many}, asks: 5, warmUp: records / 4, paced: 8 * time.Second, small: 3 * time.Second,
		point: 3 * time.Second, settle: 20 * time.Second, watched: 15 * time.Second, pairs: 1,
		lanes: []int{1, 4}, ingesters: []int{1, 2}, batches: []int{10_000}, connections: []int{8, 64, 1000},
		loads: len(loads), load: 3 * time.Second,
		backlog: cmp.Or(c.Backlog, 4*records), outages: 1, quiet: 12 * time.Second, trickles: 1, rivals: records / 2,
	}, nil
}
