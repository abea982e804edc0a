package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
)

// Curve has cost, rate and latency as functions of one variable.
type Curve struct {
	Slug   string // of the deployment
	Title  string
	What   string // the variable
	Setup  string // the fixed settings
	Points []Point
}

type Point struct {
	X         int
	Ingesters int
	Rate      Row // HTTP to queryable
	CPU       Row // per million records, api + NATS + ingesters
	Engine    Row // beside it
	Ack       Row // p99
	Again     Row // attempts per request acknowledged
}

// connectionsBatch is so small that the bodies of a thousand connections fit the api's
// memory.
const connectionsBatch = 50

// scaling measures all curves, each on its own deployment.
func (b *bench) scaling(ctx context.Context, page *Page) error {
	lanes := Curve{Slug: "lanes", Title: "Lanes and ingesters", What: "lanes", Setup: "Batches of 500, 16 connections"}
	batches := Curve{Slug: "batches", Title: "Records per request", What: "records per request", Setup: "1 lane, 1 ingester, 8 connections"}
	clients := Curve{Slug: "connections", Title: "Connections", What: "connections",
		Setup: fmt.Sprintf("1 lane, 1 ingester, batches of %d", connectionsBatch)}

	err := b.on(ctx, page, lanes.Slug, func(d *deployment.Deployment) error { return b.overLanes(ctx, d, &lanes) })
	if err != nil {
		return err
	}
	err = b.on(ctx, page, batches.Slug, func(d *deployment.Deployment) error {
		for _, n := range b.plan.batches {
			if err := b.point(ctx, d, &batches, n, load.Config{Batch: n, Connections: connections}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = b.on(ctx, page, clients.Slug, func(d *deployment.Deployment) error {
		for _, n := range b.plan.connections {
			if err := b.point(ctx, d, &clients, n, load.Config{Batch: connectionsBatch, Connections: n}); err != nil {
				return err
			}
		}
		return nil
	})
	page.Curves = []Curve{lanes, batches, clients}
	return err
}

// overLanes adds lanes step by step. The number of ingesters rises and falls in turn, so
// that few have to be started.
func (b *bench) overLanes(ctx context.Context, d *deployment.Deployment, c *Curve) error {
	order := slices.Clone(b.plan.ingesters)
	have := 1
	for _, lanes := range b.plan.lanes {
		for ; have < lanes; have++ {
			if _, err := d.Sluice(ctx, "lanes", "add", "--nats", d.NATSURL); err != nil {
				return err
			}
		}
		if err := d.NextSource(); err != nil { // the previous source stays on its lanes
			return err
		}
		for _, ingesters := range order {
			if err := b.share(ctx, d, lanes, ingesters); err != nil {
				return err
			}
			if err := b.point(ctx, d, c, lanes, load.Config{Batch: 500, Connections: 16}); err != nil {
				return err
			}
		}
		slices.Reverse(order)
	}
	slices.SortStableFunc(c.Points, func(a, b Point) int { return a.Ingesters - b.Ingesters })
	return nil
}

// share waits until the ingesters share the lanes evenly and the api, which must discover
// new lanes, uses all lanes.
func (b *bench) share(ctx context.Context, d *deployment.Deployment, lanes, ingesters int) error {
	for len(d.Of(deployment.Ingester)) < ingesters {
		if _, err := d.AddIngester(ctx); err != nil {
			return err
		}
	}
	for _, p := range d.Of(deployment.Ingester)[ingesters:] {
		if err := d.Remove(p); err != nil {
			return err
		}
	}
	const patience, pause = 90 * time.Second, time.Second
	for began := time.Now(); time.Since(began) < patience; {
		even, err := evenly(ctx, d, lanes)
		if err != nil {
			return err
		}
		if even {
			p, err := b.pass(ctx, d, load.Config{Batch: 10, Connections: connections, Records: 2_000})
			if err != nil {
				return err
			}
			used, err := d.Query(ctx, fmt.Sprintf("SELECT uniqExact(lane) FROM flow.records WHERE position BETWEEN %d AND %d", p.Acked.MinPosition, p.Acked.MaxPosition))
			if err != nil {
				return err
			}
			if used == fmt.Sprint(lanes) {
				return nil
			}
		}
		if !deployment.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%d lanes are not all in use by %d ingesters after %s", lanes, ingesters, patience)
}

// evenly reports whether all lanes are owned, and no ingester owns two more than another.
func evenly(ctx context.Context, d *deployment.Deployment, lanes int) (bool, error) {
	var held []float64
	var sum float64
	for _, p := range d.Of(deployment.Ingester) {
		m, err := p.Metrics(ctx)
		if err != nil {
			return false, err
		}
		held = append(held, m["sluice_stream_leases_held"])
		sum += held[len(held)-1]
	}
	return sum == float64(lanes) && slices.Max(held)-slices.Min(held) <= 1, nil
}

func (b *bench) point(ctx context.Context, d *deployment.Deployment, c *Curve, x int, cfg load.Config) error {
	at := Point{X: x, Ingesters: len(d.Of(deployment.Ingester))}
	cfg.Duration = b.plan.point
	name := fmt.Sprintf("%s %d, ingesters %d", c.What, x, at.Ingesters)
	err := b.repeat(ctx, d, job{name: name, load: cfg, took: func(p pass) error {
		for row, v := range map[*Row]float64{
			&at.Rate: p.StoredPerSec, &at.CPU: p.ours(), &at.Engine: p.cpu(deployment.Engine), &at.Ack: p.Latency.P99 * 1e3,
			&at.Again: float64(p.Attempts) / float64(p.Requests),
		} {
			row.Runs = append(row.Runs, v)
		}
		return nil
	}})
	c.Points = append(c.Points, at)
	return err
}
