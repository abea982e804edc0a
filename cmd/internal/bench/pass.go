package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
	"sluice/pkg/stream"
)

// pass is one run of a load: its report, and the resources used until the last record was
// queryable.
type pass struct {
	load.Report
	load    load.Config
	started time.Time // timestamp of the first record
	change  counters  // from before the first request until all records were queryable
}

// counters are counters of all processes.
type counters struct {
	apiAllocs      float64 // objects the api allocated
	ingesterAllocs float64 // objects the ingesters allocated
	blocks         float64 // inserts of the ingesters
	parts          float64 // parts made by inserts, in all tables
	streamed       float64 // bytes in the lanes
	entries        float64 // messages appended to the lanes
}

// pass posts by cfg, waits until the last record is queryable, and compares stored with
// acknowledged records.
func (b *bench) pass(ctx context.Context, d *deployment.Deployment, cfg load.Config) (pass, error) {
	b.seed++
	cfg.URL, cfg.Token, cfg.Seed, cfg.Start = d.URL, d.Token, b.seed, time.Now()
	cfg.After = cfg.Start.UnixMicro() // positions below earlier ones would cause lookups
	before, err := stored(ctx, d)
	if err != nil {
		return pass{}, err
	}
	return b.send(ctx, d, cfg, func(ctx context.Context, acked load.Totals) error {
		return untilStored(ctx, d, before+acked.Records)
	})
}

// send posts by cfg until all records have arrived.
func (b *bench) send(ctx context.Context, d *deployment.Deployment, cfg load.Config, arrived func(context.Context, load.Totals) error) (pass, error) {
	cfg.PIDs = map[string]int{}
	for _, p := range d.Processes {
		cfg.PIDs[p.Name] = p.PID()
	}
	before, err := count(ctx, d)
	if err != nil {
		return pass{}, err
	}
	cfg.Stored = arrived
	report, err := load.Run(ctx, cfg)
	if err != nil {
		return pass{}, err
	}
	after, err := count(ctx, d)
	if err != nil {
		return pass{}, err
	}
	for _, used := range report.Processes {
		if used.Error != "" {
			return pass{}, fmt.Errorf("%s: %s", used.Name, used.Error)
		}
	}
	if err := load.StoredIn(d.HTTP)(ctx, report.Acked); err != nil {
		return pass{}, err
	}
	return pass{Report: report, load: cfg, started: cfg.Start, change: after.since(before)}, nil
}

// pause is the polling interval of the number of records. Each poll costs the engine about
// 5 ms of CPU.
const pause = 50 * time.Millisecond

// untilStored waits until this number of records is stored.
func untilStored(ctx context.Context, d *deployment.Deployment, rows int64) error {
	const patience = time.Minute
	var last int64
	for moved := time.Now(); time.Since(moved) < patience; {
		now, err := stored(ctx, d)
		if err != nil || now >= rows {
			return err
		}
		if now != last {
			last, moved = now, time.Now()
		}
		if !deployment.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("%w: %d of %d for a minute", load.ErrNotStored, last, rows)
}

func stored(ctx context.Context, d *deployment.Deployment) (int64, error) {
	return d.Number(ctx, "SELECT count() FROM flow.records")
}

func count(ctx context.Context, d *deployment.Deployment) (c counters, err error) {
	api, err := d.Process(deployment.API).Metrics(ctx)
	if err != nil {
		return c, err
	}
	c.apiAllocs = api["go_memstats_mallocs_total"]
	for _, p := range d.Of(deployment.Ingester) {
		m, err := p.Metrics(ctx)
		if err != nil {
			return c, err
		}
		c.ingesterAllocs += m["go_memstats_mallocs_total"]
		for name, value := range m {
			if strings.HasPrefix(name, "sluice_ingest_blocks_total{") {
				c.blocks += value
			}
		}
	}
	made, err := d.Query(ctx, "SELECT sum(value) FROM system.events WHERE event = 'MergeTreeDataWriterBlocks'")
	if err != nil {
		return c, err
	}
	if c.parts, err = strconv.ParseFloat(made, 64); err != nil {
		return c, err
	}
	c.streamed, c.entries, err = streamed(ctx, d)
	return c, err
}

// streamed returns NATS's bytes in the lanes and number of appended messages.
func streamed(ctx context.Context, d *deployment.Deployment) (bytes, entries float64, err error) {
	nc, err := nats.Connect(d.NATSURL)
	if err != nil {
		return 0, 0, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, 0, err
	}
	lanes := js.ListStreams(ctx)
	for info := range lanes.Info() {
		if strings.HasPrefix(info.Config.Name, stream.LanePrefix) && !slices.Contains([]string{stream.DeadStream, stream.NoteStream}, info.Config.Name) {
			bytes += float64(info.State.Bytes)
			entries += float64(info.State.LastSeq)
		}
	}
	return bytes, entries, lanes.Err()
}

func (c counters) since(before counters) counters {
	return counters{
		apiAllocs: c.apiAllocs - before.apiAllocs, ingesterAllocs: c.ingesterAllocs - before.ingesterAllocs,
		blocks: c.blocks - before.blocks, parts: c.parts - before.parts, streamed: c.streamed - before.streamed, entries: c.entries - before.entries,
	}
}

func (p pass) perRecord(n float64) float64 { return n / float64(p.Acked.Records) }

// cpu returns the CPU-seconds per million records of the processes with this name prefix.
func (p pass) cpu(name string) (sum float64) {
	for _, used := range p.Processes {
		if strings.HasPrefix(used.Name, name) {
			sum += used.CPUSecondsPerMillion
		}
	}
	return sum
}

// ours returns the CPU-seconds per million records of api, NATS and ingesters.
func (p pass) ours() float64 {
	return p.cpu(deployment.API) + p.cpu(deployment.NATS) + p.cpu(deployment.Ingester)
}

// peak returns the peak memory of a process, in MiB.
func (p pass) peak(name string) float64 {
	for _, used := range p.Processes {
		if used.Name == name {
			return float64(used.PeakRSSBytes) / (1 << 20)
		}
	}
	return 0
}

// job is a load that is run several times.
type job struct {
	name string
	load load.Config
	took func(pass) error // called after every run but the warm-up

	// beside starts concurrent work, until end is called; may be nil.
	beside func(context.Context) (end func() error, err error)
}

// repeat waits for the merges of the previous job, warms up, and makes the runs of a job.
func (b *bench) repeat(ctx context.Context, d *deployment.Deployment, j job) error {
	if err := b.settle(ctx, d); err != nil {
		return err
	}
	if !b.plan.cold || !b.warm {
		if err := b.warmUp(ctx, d, j.load); err != nil {
			return fmt.Errorf("%s: warm-up: %w", j.name, err)
		}
		b.warm = true
	}
	for n := range b.plan.runs {
		p, err := b.once(ctx, d, j)
		if err == nil {
			b.note("%s, run %d of %d: %s rec/s, ack p99 %s ms, %s CPU-s per million", j.name, n+1, b.plan.runs,
				number(p.StoredPerSec), number(p.Latency.P99*1e3), number(p.ours()))
			err = j.took(p)
		}
		if err != nil {
			return fmt.Errorf("%s: run %d: %w", j.name, n+1, err)
		}
	}
	return nil
}

// warmUp posts a part of a load without measuring.
func (b *bench) warmUp(ctx context.Context, d *deployment.Deployment, warm load.Config) error {
	if warm.Duration > 0 {
		warm.Duration = max(time.Duration(warmUp*float64(warm.Duration)), 200*time.Millisecond)
	} else {
		warm.Records = min(b.plan.warmUp, warm.Records)
	}
	_, err := b.pass(ctx, d, warm)
	return err
}

// warmUp is the share of a load's duration for its warm-up.
const warmUp = 0.25

// once makes one run, with its concurrent work.
func (b *bench) once(ctx context.Context, d *deployment.Deployment, j job) (pass, error) {
	if j.beside == nil {
		return b.pass(ctx, d, j.load)
	}
	end, err := j.beside(ctx)
	if err != nil {
		return pass{}, err
	}
	p, err := b.pass(ctx, d, j.load)
	if endErr := end(); err == nil {
		err = endErr
	}
	return p, err
}

// settle waits until no merge runs, at most plan.settle.
func (b *bench) settle(ctx context.Context, d *deployment.Deployment) error {
	for began := time.Now(); time.Since(began) < b.plan.settle; {
		merges, err := d.Query(ctx, "SELECT count() FROM system.merges")
		if err != nil || merges == "0" {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
	return nil
}

// onDisk returns the bytes per record of flow.records and of all tables, after merges.
func (b *bench) onDisk(ctx context.Context, d *deployment.Deployment) (records, all float64, err error) {
	if err := b.settle(ctx, d); err != nil {
		return 0, 0, err
	}
	text, err := d.Query(ctx, `SELECT sumIf(bytes_on_disk, table = 'records'), sum(bytes_on_disk), sumIf(rows, table = 'records')
		FROM system.parts WHERE database = 'flow' AND active`)
	if err != nil {
		return 0, 0, err
	}
	var rows float64
	if _, err := fmt.Sscan(text, &records, &all, &rows); err != nil {
		return 0, 0, fmt.Errorf("parse the bytes on disk %q: %w", text, err)
	}
	return records / rows, all / rows, nil
}
