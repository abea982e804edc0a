package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"sluice/pkg/load/simulator"
)

// mining are the checks of event logs: a simulated engine posts what happens in
// it, and the libraries of the field read what sluice export makes of it.
func (o options) mining() client {
	python := filepath.Join(o.Tools, "mining/bin/python")
	return client{name: "pm4py, pandas, lxml", needs: python, prepare: simulate, command: []string{python, o.Checks + "/mining.py"}}
}

// simulate posts the records of an engine, and leaves in truth.json what the
// checks compare with.
func simulate(ctx context.Context, dir string, env map[string]string) error {
	truth := new(simulator.Truth)
	engine := simulator.New(simulator.Config{Seed: 3, Start: time.Now().Add(-3 * time.Hour), Every: 10 * time.Second, Instances: 600, Truth: truth})
	const perRequest = 5000
	var body bytes.Buffer
	records := 0
	post := func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, env["API"]+"/flow/flowRecord/batch?wait=stored", bytes.NewReader(body.Bytes()))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+env["TOKEN"])
		req.Header.Set("Content-Type", "application/x-ndjson")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK || res.Header.Get("Sluice-Stored") == "false" {
			return fmt.Errorf("post simulated records: %s, Sluice-Stored %q", res.Status, res.Header.Get("Sluice-Stored"))
		}
		body.Reset()
		return nil
	}
	now := time.Now()
	for r, more := engine.NextBy(now); more; r, more = engine.NextBy(now) {
		body.Write(r.JSON)
		body.WriteByte('\n')
		if records++; records%perRequest == 0 {
			if err := post(); err != nil {
				return err
			}
		}
	}
	if body.Len() > 0 {
		if err := post(); err != nil {
			return err
		}
	}
	told := struct {
		Instances int            `json:"instances"`
		Ended     map[string]int `json:"ended"` // elements of all types but two that were completed, by id
	}{len(truth.Instances), map[string]int{}}
	for _, e := range truth.Elements {
		if e.CompletedAt > 0 && e.Type != "PROCESS" && e.Type != "MULTI_INSTANCE_BODY" {
			told.Ended[e.ID]++
		}
	}
	text, err := json.Marshal(told)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "truth.json"), text, 0o600)
}
