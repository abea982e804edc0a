package main

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/capacity"
	"sluice/pkg/load"
)

// loads are the loads to which pkg/capacity fits its model. Each has another mix of
// records, requests, entries and blocks.
var loads = []capacity.Point{
	{Name: "1 a request, 64 connections", Batch: 1, Connections: 64},
	{Name: "1000 a request, 8 connections", Batch: 1000, Connections: 8},
	{Name: "1000 a request, 40 000/s", Batch: 1000, Connections: 8, Rate: 40_000},
	{Name: "100 a request, 10 000/s", Batch: 100, Connections: 8, Rate: 10_000},
	{Name: "50 a request, 8 connections", Batch: 50, Connections: 8},
	{Name: "1 a request, 1 000/s", Batch: 1, Connections: 8, Rate: 1_000},
	{Name: "10 a request, 64 connections", Batch: 10, Connections: 64},
	{Name: "100 a request, 100/s", Batch: 100, Connections: 1, Rate: 100}, // few records, in one block per second
}

// capacity measures the coefficients of sluice capacity.
func (b *bench) capacity(ctx context.Context, page *Page) error {
	m := page.Machine
	all := capacity.Measured{
		When: b.began.UTC().Format("2006-01-02 15:04 UTC"), Command: b.cfg.command, Machine: m.CPU, Busy: m.Load,
		Cores: float64(m.Cores), Sync: m.Sync.Seconds(),
	}
	err := b.on(ctx, page, "capacity", func(d *deployment.Deployment) error {
		all.Commit = page.Versions.Commit
		var merging, during float64
		for _, point := range loads[:b.plan.loads] {
			cfg := load.Config{Batch: point.Batch, Connections: point.Connections, Rate: point.Rate, Duration: b.plan.load}
			if point.Rate > 0 {
				cfg.Duration = 2 * b.plan.load
			}
			point.CPU = map[string]float64{}
			// Merges follow an insert. Their CPU time is measured after they ended, once
			// for all runs of a load.
			before, err := load.CPUTime(d.Process(deployment.Engine).PID())
			if err != nil {
				return err
			}
			var engine float64
			err = b.repeat(ctx, d, job{name: point.Name, load: cfg, took: func(p pass) error {
				add(&point, p)
				engine += p.cpu(deployment.Engine) * float64(p.Acked.Records) / 1e6
				return nil
			}})
			if err == nil {
				err = b.settle(ctx, d)
			}
			if err != nil {
				return err
			}
			after, err := load.CPUTime(d.Process(deployment.Engine).PID())
			if err != nil {
				return err
			}
			if point.Batch >= 50 { // otherwise other work of the engine hides the cost of few merges
				runs := float64(b.plan.runs)
				during, merging = during+engine, merging+max(0, (after-before).Seconds()-engine*(runs+warmUp)/runs)
			}
			all.Points = append(all.Points, point)
		}
		if during > 0 {
			all.Merges = merging / during
		}
		var err error
		_, all.Table, err = b.onDisk(ctx, d)
		return err
	})
	if err != nil {
		return err
	}
	all.Max()
	if b.cfg.Short { // runs below one tick of CPU time fit no model
		return all.Write(b.cfg.Coefficients)
	}
	if all.Inserted, err = insertBytes(ctx); err != nil {
		return err
	}
	if _, err := capacity.Fit(all); err != nil {
		return err
	}
	return all.Write(b.cfg.Coefficients)
}

func add(point *capacity.Point, p pass) {
	point.Seconds += p.StoredSeconds
	point.Records += float64(p.Acked.Records)
	point.Requests += float64(p.Requests)
	point.Bytes += float64(p.Acked.Bytes)
	point.Entries += p.change.entries
	point.Blocks += p.change.blocks
	point.Streamed += p.change.streamed
	for process, name := range map[string]string{
		capacity.API: deployment.API, capacity.NATS: deployment.NATS, capacity.Ingester: deployment.Ingester, capacity.Engine: deployment.Engine, capacity.Load: "load",
	} {
		point.CPU[process] += p.cpu(name) * float64(p.Acked.Records) / 1e6
	}
}

// insertBytes measures the size of a record in an insert, by a benchmark of pkg/warehouse.
func insertBytes(ctx context.Context) (float64, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sluice").Output()
	if err != nil {
		return 0, fmt.Errorf("find the module sluice: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-vet=off", "-run", "^$", "-bench", "^BenchmarkEncode$/^compress=lz4$", "-benchtime", "1x", "./pkg/warehouse")
	cmd.Dir = strings.TrimSpace(string(root))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("run BenchmarkEncode: %w\n%s", err, out)
	}
	fields := strings.Fields(string(out))
	for i, field := range fields {
		if field == "encoded-B/record" {
			return strconv.ParseFloat(fields[i-1], 64)
		}
	}
	return 0, fmt.Errorf("BenchmarkEncode printed no bytes per record:\n%s", out)
}
