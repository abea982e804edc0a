package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"sluice/pkg/load"
	"sluice/pkg/load/simulator"
)

// mining checks event logs: a simulated engine posts its records, and process mining
// libraries read the files of sluice export.
func (o options) mining() client {
	python := filepath.Join(o.Tools, "python/bin/python")
	return client{name: "pm4py, pandas, lxml", needs: python, prepare: simulate, command: []string{python, o.Checks + "/mining.py"}}
}

// simulate posts the records of an engine, and writes the expected values to truth.json.
func simulate(ctx context.Context, dir string, env map[string]string) error {
	now := time.Now()
	cfg := simulator.Config{Seed: 3, Start: now.Add(-3 * time.Hour), Every: 10 * time.Second, Instances: 600}
	records := int64(0)
	counted := simulator.New(cfg)
	for _, more := counted.NextBy(now); more; _, more = counted.NextBy(now) {
		records++
	}
	truth := new(simulator.Truth)
	cfg.Truth = truth
	posts := load.Config{URL: env["API"], Token: env["TOKEN"], Source: simulator.New(cfg), Records: records, Batch: 5000, Connections: 1}
	posts.Stored = load.StoredAt(posts)
	if _, err := load.Run(ctx, posts); err != nil {
		return err
	}
	result := struct {
		Instances int            `json:"instances"`
		Ended     map[string]int `json:"ended"` // completed elements by id, without two types
	}{len(truth.Instances), map[string]int{}}
	for _, e := range truth.Elements {
		if e.CompletedAt > 0 && e.Type != "PROCESS" && e.Type != "MULTI_INSTANCE_BODY" {
			result.Ended[e.ID]++
		}
	}
	text, err := json.Marshal(result)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "truth.json"), text, 0o600)
}
