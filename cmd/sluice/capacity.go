package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"sluice/pkg/capacity"
)

type capacityCmd struct {
	Rate        []float64     `default:"10000,100000,1000000,10000000" help:"Records per second at the busiest; several, comma-separated, make several columns."`
	RecordBytes float64       `default:"700" help:"Bytes of JSON of a record."`
	Batch       int           `default:"500" help:"Records per request."`
	Retention   time.Duration `default:"9600h" help:"How long tables keep records."`
	LogTime     time.Duration `name:"log-time" default:"24h" help:"For how long the log has room: the longest outage of ClickHouse that strands nothing."`
	Copies      int           `default:"3" help:"Copies of every entry of the log: 1, 3 or 5."`
	Replicas    int           `default:"2" help:"Replicas of every shard of ClickHouse."`
	Cores       int           `default:"16" help:"Cores of a machine."`
	Gigabits    float64       `default:"10" help:"Gigabits per second of its network."`
	Terabytes   float64       `default:"60" help:"Terabytes of its disks."`
	Use         float64       `default:"0.6" help:"Share of its cores, network and disks, and of what a lane takes, that is used at that rate."`
	JSON        bool          `name:"json" help:"Print everything, every limit too, as JSON."`
	Compare     bool          `help:"Print instead how far the model is from what was measured and not used to make it."`
}

func (c *capacityCmd) ask(rate float64) capacity.Ask {
	return capacity.Ask{
		Rate: rate, RecordBytes: c.RecordBytes, Batch: c.Batch, Retention: c.Retention, Log: c.LogTime,
		Copies: c.Copies, Replicas: c.Replicas, Cores: c.Cores, Gigabits: c.Gigabits, Terabytes: c.Terabytes, Use: c.Use,
	}
}

// Run prints how many machines it takes.
func (c *capacityCmd) Run() error {
	measured, err := capacity.Embedded()
	if err != nil {
		return err
	}
	model, err := capacity.Fit(measured)
	if err != nil {
		return err
	}
	if c.Compare {
		return capacity.WriteCompared(os.Stdout, model.Compare())
	}
	var plans []capacity.Plan
	for _, rate := range c.Rate {
		p, err := model.Plan(c.ask(rate))
		if err != nil {
			return err
		}
		plans = append(plans, p)
	}
	slices.SortStableFunc(plans, func(a, b capacity.Plan) int { return int(a.Ask.Rate - b.Ask.Rate) })
	if c.JSON {
		return json.NewEncoder(os.Stdout).Encode(plans)
	}
	fmt.Printf("%d cores, %g Gbit/s and %g TB a machine, used to %.0f %%; records of %.0f bytes, %d in a request; the log has room for %s, tables for %s\n",
		c.Cores, c.Gigabits, c.Terabytes, c.Use*100, c.RecordBytes, c.Batch, c.LogTime, c.Retention)
	fmt.Printf("measured %s on %s (%s)\n\n", measured.When, measured.Machine, measured.Command)
	return capacity.WriteTable(os.Stdout, plans)
}
