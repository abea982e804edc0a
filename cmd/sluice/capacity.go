package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"sluice/pkg/capacity"
)

type capacityCmd struct {
	Rate []float64    `default:"10000,100000,1000000,10000000" help:"Peak records per second; several, comma-separated, make several columns."`
	Ask  capacity.Ask `embed:""`
	JSON bool         `name:"json" help:"Print the plans with every limit as JSON."`
}

func (c *capacityCmd) ask(rate float64) capacity.Ask {
	a := c.Ask
	a.Rate = rate
	return a
}

func (c *capacityCmd) Run() error {
	measured, err := capacity.Embedded()
	if err != nil {
		return err
	}
	model, err := capacity.Fit(measured)
	if err != nil {
		return err
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
	a := c.Ask
	fmt.Printf("%d cores, %g Gbit/s and %g TB a machine, used to %.0f %%; records of %.0f bytes, %d in a request; the log has room for %s, tables for %s\n",
		a.Cores, a.Gigabits, a.Terabytes, a.Use*100, a.RecordBytes, a.Batch, a.Log, a.Retention)
	fmt.Printf("measured %s on %s (%s)\n\n", measured.When, measured.Machine, measured.Command)
	return capacity.WriteTable(os.Stdout, plans)
}
