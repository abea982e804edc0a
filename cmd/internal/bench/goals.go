package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
)

// connections is the default number of connections.
const connections = 8

// sections are the table of goals, in order. Each can be measured alone.
var sections = []struct {
	name    string
	measure func(*bench, context.Context, *deployment.Deployment) (rows, error)
}{
	{"cost", (*bench).cost}, {"sustained", (*bench).sustained}, {"half", (*bench).half}, {"small", (*bench).small}, {"again", (*bench).again},
	{"outage", (*bench).outage}, {"trickle", (*bench).trickle}, {"start", (*bench).start},
}

func isSection(name string) bool {
	for _, s := range sections {
		if s.name == name {
			return true
		}
	}
	return false
}

// goals measures the named sections on one deployment, or all.
func (b *bench) goals(ctx context.Context, page *Page) error {
	named := slices.ContainsFunc(b.cfg.Parts, isSection)
	return b.on(ctx, page, "goals", func(d *deployment.Deployment) error {
		for _, s := range sections {
			if named && !slices.Contains(b.cfg.Parts, s.name) {
				continue
			}
			r, err := s.measure(b, ctx, d)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			b.print(r)
			page.Goals = append(page.Goals, r...)
		}
		return nil
	})
}

// rows are the figures of the runs of one load.
type rows []Row

func (r rows) add(values ...float64) {
	for i, v := range values {
		r[i].Runs = append(r[i].Runs, v)
	}
}

func (b *bench) print(r rows) {
	for _, row := range r {
		b.note("  %s", row)
	}
}

func (b *bench) cost(ctx context.Context, d *deployment.Deployment) (rows, error) {
	r := rows{
		{What: "CPU per million records, api + NATS + ingester, batches of 500", Unit: "s", Goal: atMost(2.9, 2.5)},
		{What: "– share of api", Unit: "s"},
		{What: "– share of NATS", Unit: "s", Goal: atMost(0.5, 0.35)},
		{What: "– share of ingester", Unit: "s"},
		{What: "– also running: the ClickHouse engine", Unit: "s"},
		{What: "– also running: the load generator", Unit: "s"},
		{What: "allocations per record, api", Goal: atMost(1, 0)},
		{What: "allocations per record, ingester", Goal: atMost(1, 0)},
		{What: "bytes per record in the stream", Unit: "B", Goal: atMost(76, 0)},
		{What: "bytes per record in ClickHouse, flow.records", Unit: "B", Goal: atMost(17, 0)},
		{What: "– including tables filled by views", Unit: "B"},
	}
	cfg := load.Config{Batch: 500, Connections: connections, Records: b.plan.records}
	err := b.repeat(ctx, d, job{name: "batches of 500", load: cfg, took: func(p pass) error {
		records, all, err := b.onDisk(ctx, d)
		if err != nil {
			return err
		}
		r.add(p.ours(), p.cpu(deployment.API), p.cpu(deployment.NATS), p.cpu(deployment.Ingester), p.cpu(deployment.Engine), p.cpu("load"),
			p.perRecord(p.change.apiAllocs), p.perRecord(p.change.ingesterAllocs), p.perRecord(p.change.streamed), records, all)
		return nil
	}})
	return r, err
}

// sustained measures the maximum rate from post to queryable, at batches of 1000.
func (b *bench) sustained(ctx context.Context, d *deployment.Deployment) (rows, error) {
	r := rows{
		{What: "sustained rate, HTTP to queryable, batches of 1000", Unit: "rec/s", Goal: atLeast(200_000, 300_000)},
		{What: "– acknowledgement rate", Unit: "rec/s"},
		{What: "resident memory at the sustained rate, api, peak", Unit: "MiB", Goal: atMost(128, 0)},
		{What: "resident memory at the sustained rate, ingester, peak", Unit: "MiB", Goal: atMost(320, 0)},
		{What: "– also running: NATS", Unit: "MiB"},
		{What: "– also running: the ClickHouse engine", Unit: "MiB"},
		{What: "parts per second at the sustained rate, flow.records", Unit: "1/s"},
		{What: "– including tables filled by views", Unit: "1/s"},
	}
	cfg := load.Config{Batch: 1000, Connections: connections, Records: b.plan.records}
	err := b.repeat(ctx, d, job{name: "batches of 1000", load: cfg, took: func(p pass) error {
		r.add(p.StoredPerSec, p.RecordsPerSec, p.peak(deployment.API), p.peak(deployment.Ingester), p.peak(deployment.NATS), p.peak(deployment.Engine),
			p.change.blocks/p.StoredSeconds, p.change.parts/p.StoredSeconds)
		return nil
	}})
	b.rate = r[0].Median()
	return r, err
}

// halfBatch is the number of records per request at half the sustained rate. It is
// constant, so that stored requests can be matched.
const halfBatch = 1000

// half measures ack latency and freshness at a given rate.
func (b *bench) half(ctx context.Context, d *deployment.Deployment) (rows, error) {
	rate := b.rate / 2
	at := fmt.Sprintf(" at half of the sustained rate, %s rec/s", number(rate))
	r := rows{
		{What: "ack p50" + at, Unit: "ms", Goal: atMost(5, 3)},
		{What: "ack p99" + at, Unit: "ms", Goal: atMost(15, 12)},
		{What: "freshness p50" + at, Unit: "s"},
		{What: "freshness p99" + at, Unit: "s", Goal: atMost(0.8, 0)},
		{What: "parts per second" + at + ", flow.records", Unit: "1/s"},
	}
	cfg := load.Config{Batch: halfBatch, Connections: connections, Rate: rate}
	cfg.Records = int64(rate*b.plan.paced.Seconds()) / halfBatch * halfBatch
	watched := &watch{deployed: d}
	err := b.repeat(ctx, d, job{name: "half of the sustained rate", load: cfg, beside: watched.start, took: func(p pass) error {
		p50, p99, err := watched.freshness(ctx, p)
		if err != nil {
			return err
		}
		r.add(p.Latency.P50*1e3, p.Latency.P99*1e3, p50.Seconds(), p99.Seconds(), p.change.blocks/p.StoredSeconds)
		return nil
	}})
	return r, err
}

func (b *bench) small(ctx context.Context, d *deployment.Deployment) (rows, error) {
	var all rows
	for _, c := range []struct {
		batch, connections int
		posts, cpu         *Goal
	}{
		{1, 64, atLeast(20_000, 30_000), atMost(58, 45)},
		{1, 8, atLeast(7_000, 10_000), nil},
		{10, 8, nil, atMost(15, 12)},
		{100, 8, nil, atMost(3.6, 0)},
		{1000, 8, nil, atMost(2.6, 0)},
	} {
		name := fmt.Sprintf("requests of %d, %d connections", c.batch, c.connections)
		r := rows{
			{What: name, Unit: "rec/s", Goal: c.posts},
			{What: "– ack p99", Unit: "ms"},
			{What: "– CPU per million records, api + NATS + ingester", Unit: "s", Goal: c.cpu},
		}
		cfg := load.Config{Batch: c.batch, Connections: c.connections, Duration: b.plan.small}
		err := b.repeat(ctx, d, job{name: name, load: cfg, took: func(p pass) error {
			r.add(p.RecordsPerSec, p.Latency.P99*1e3, p.ours())
			return nil
		}})
		if err != nil {
			return nil, err
		}
		all = append(all, r...)
	}
	return all, nil
}

// Resent records are cut into other requests, as after a restart of a broker, so that no
// request is a repeat.
const (
	firstBatch = 500
	againBatch = 700
)

// again measures the rate of deduplicating resent records, after storing as many new ones
// through the same api and ingester.
func (b *bench) again(ctx context.Context, d *deployment.Deployment) (rows, error) {
	var all rows
	for _, kind := range []struct {
		name     string
		envelope load.Envelope
	}{{"with positions", load.FullEnvelope}, {"with an id only", load.SlimEnvelope}} {
		r := rows{
			{What: fmt.Sprintf("%s records %s, resent: rate relative to the first time", number(float64(b.plan.records)), kind.name), Goal: atLeast(0.5, 0)},
			{What: "– the first time, HTTP to queryable, batches of 500", Unit: "rec/s"},
			{What: "– resent, HTTP to deduplicated, batches of 700", Unit: "rec/s"},
			{What: "– ingester, CPU per million, the first time", Unit: "s"},
			{What: "– ingester, CPU per million, resent", Unit: "s"},
		}
		cfg := load.Config{Batch: firstBatch, Connections: connections, Records: b.plan.records, Envelope: kind.envelope}
		err := b.repeat(ctx, d, job{name: "first " + kind.name, load: cfg, took: func(first pass) error {
			again, err := b.passAgain(ctx, d, first)
			if err != nil {
				return err
			}
			b.note("again %s: %s rec/s", kind.name, number(again.StoredPerSec))
			r.add(again.StoredPerSec/first.StoredPerSec, first.StoredPerSec, again.StoredPerSec, first.cpu(deployment.Ingester), again.cpu(deployment.Ingester))
			return nil
		}})
		if err != nil {
			return nil, err
		}
		all = append(all, r...)
	}
	return all, nil
}

// passAgain resends the records of a pass, waits until all are deduplicated, and compares
// stored with acknowledged records.
func (b *bench) passAgain(ctx context.Context, d *deployment.Deployment, first pass) (pass, error) {
	cfg := first.load
	cfg.Batch = againBatch
	before, err := deduplicated(ctx, d)
	if err != nil {
		return pass{}, err
	}
	return b.send(ctx, d, cfg, func(ctx context.Context, acked load.Totals) error {
		for moved := time.Now(); time.Since(moved) < time.Minute; {
			now, err := deduplicated(ctx, d)
			if err != nil || now >= before+acked.Records {
				return err
			}
			if !deployment.Sleep(ctx, pause) {
				return ctx.Err()
			}
		}
		return fmt.Errorf("%w: not all of %d records were deduplicated within a minute", load.ErrNotStored, acked.Records)
	})
}

// deduplicated returns the number of records that the ingesters deduplicated.
func deduplicated(ctx context.Context, d *deployment.Deployment) (n int64, err error) {
	for _, p := range d.Of(deployment.Ingester) {
		m, err := p.Metrics(ctx)
		if err != nil {
			return 0, err
		}
		for name, value := range m {
			if strings.HasPrefix(name, "sluice_ingest_deduplicated_records_total{") {
				n += int64(value)
			}
		}
	}
	return n, nil
}

// start measures the time until `sluice up` is ready, without data.
func (b *bench) start(ctx context.Context, _ *deployment.Deployment) (rows, error) {
	r := rows{{What: "start of sluice up until ready, fresh folder", Unit: "s", Goal: atMost(3, 0)}}
	for n := range b.plan.runs + 1 { // the first one is the warm-up
		took, err := b.up(ctx, n)
		if err != nil {
			return r, err
		}
		if n > 0 {
			r.add(took.Seconds())
		}
	}
	return r, nil
}

func (b *bench) up(ctx context.Context, n int) (took time.Duration, err error) {
	d, err := deployment.New(deployment.Config{Bin: filepath.Join(b.dir, "bin"), Dir: filepath.Join(b.dir, fmt.Sprint("up-", n)), Up: true})
	if err == nil {
		began := time.Now()
		err = d.Start(ctx)
		took = time.Since(began)
	}
	return took, errors.Join(err, d.Stop())
}
