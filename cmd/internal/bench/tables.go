package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
)

// tables measures what records cost in ClickHouse: bytes by table and column, and
// processor time of the engine. They wait in the lane while there is no ingester, and
// one that is started then drains it; merges follow, and at last there is one part of
// each month.
func (b *bench) tables(ctx context.Context, page *Page) error {
	return b.on(ctx, page, "tables", func(d *deployment.Deployment) error {
		if err := d.Remove(d.Process(deployment.Ingester)); err != nil {
			return err
		}
		b.note("fill the lane with %d records", b.plan.many)
		filled, err := b.fill(ctx, d, b.plan.many)
		if err != nil {
			return err
		}
		records := float64(filled.Acked.Records)
		engine := d.Process(deployment.Engine).PID()
		before, err := load.CPUTime(engine)
		if err != nil {
			return err
		}
		drain := func() error {
			var options []string
			if b.cfg.Short { // of one block there is no rate
				options = append(options, "--block-rows=3000")
			}
			if _, err := d.AddIngesterTo(ctx, d.Native, "flow", options...); err != nil {
				return err
			}
			got, err := watchDrain(ctx, d, records)
			if err != nil {
				return err
			}
			page.add("records", "", records)
			page.add("drained", "records/s", got.rate)
			page.add("ingester", "CPU-s per million", got.ingester)
			return load.StoredIn(d.HTTP)(ctx, filled.Acked)
		}
		for _, state := range []struct {
			name  string
			reach func() error
		}{
			{"when all are stored", drain},
			{"when its merges have ended", func() error { return d.WaitMerged(ctx) }},
			{"in one part of a month", func() error { return merge(ctx, d) }},
		} {
			if err := state.reach(); err != nil {
				return err
			}
			b.note("%s", state.name)
			now, err := load.CPUTime(engine)
			if err != nil {
				return err
			}
			page.add("engine until then, "+state.name, "CPU-s per million", (now-before).Seconds()/records*1e6)
			if err := page.sizes(ctx, d, state.name, tableSizes, records); err != nil {
				return err
			}
		}
		return page.sizes(ctx, d, "in one part of a month", columnSizes, records)
	})
}

// fill posts records, which wait in the lanes while there is no ingester.
func (b *bench) fill(ctx context.Context, d *deployment.Deployment, records int64) (load.Report, error) {
	b.seed++
	start := time.Now()
	return load.Run(ctx, load.Config{
		URL: d.URL, Token: d.Token, Seed: b.seed, Start: start, After: start.UnixMicro(),
		Batch: 1000, Connections: connections, Records: records,
	})
}

// drained is what emptying the lanes gave.
type drained struct {
	rate     float64 // records a second, from the end of the first block on
	ingester float64 // CPU-seconds per million of these records
}

// watchDrain watches the ingester until it has stored so many records. What it does
// before its first block is not counted: it looks where the tables end.
func watchDrain(ctx context.Context, d *deployment.Deployment, records float64) (got drained, err error) {
	const pause, patience = 20 * time.Millisecond, time.Minute
	ingester := d.Process(deployment.Ingester)
	var first, last sighting
	for last.rows < records {
		if last.rows > 0 && time.Since(last.moved) > patience {
			return got, fmt.Errorf("%w: %.0f of %.0f for a minute", load.ErrNotStored, last.rows, records)
		}
		m, err := ingester.Metrics(ctx)
		if err != nil {
			return got, err
		}
		now := sighting{moved: time.Now()}
		for name, value := range m {
			if strings.HasPrefix(name, "sluice_ingest_rows_total{") {
				now.rows += value
			}
		}
		if now.rows > last.rows {
			if now.ingester, err = load.CPUTime(ingester.PID()); err != nil {
				return got, err
			}
			if last = now; first.rows == 0 {
				first = now
			}
		}
		if !deployment.Sleep(ctx, pause) {
			return got, ctx.Err()
		}
	}
	millions := (last.rows - first.rows) / 1e6
	got.rate = millions * 1e6 / last.moved.Sub(first.moved).Seconds()
	got.ingester = (last.ingester - first.ingester).Seconds() / millions
	return got, nil
}

// sighting is how many rows were stored at a time, and what that had taken.
type sighting struct {
	rows     float64
	moved    time.Time
	ingester time.Duration
}

// tableSizes and columnSizes are names and bytes. Tables that hold no records are left out.
const (
	tableSizes = `SELECT table, sum(bytes_on_disk) AS bytes FROM system.parts
		WHERE database = 'flow' AND active AND table NOT IN ('schema', 'changes') GROUP BY table ORDER BY bytes DESC`
	columnSizes = `SELECT concat(table, '.', name), data_compressed_bytes FROM system.columns WHERE database = 'flow' AND data_compressed_bytes > 0
		ORDER BY table != 'records', table, data_compressed_bytes DESC
		UNION ALL SELECT concat(table, '.', name), data_compressed_bytes FROM system.data_skipping_indices WHERE database = 'flow' AND data_compressed_bytes > 0`
)

// merge makes one part of every month of every table.
func merge(ctx context.Context, d *deployment.Deployment) error {
	names, err := d.Query(ctx, "SELECT DISTINCT table FROM system.parts WHERE database = 'flow' AND active")
	if err != nil {
		return err
	}
	for table := range strings.FieldsSeq(names) {
		if err := d.Exec(ctx, "OPTIMIZE TABLE flow."+table+" FINAL"); err != nil {
			return err
		}
	}
	return nil
}

// add adds a row of the page of tables.
func (p *Page) add(what, unit string, value float64) {
	p.Tables = append(p.Tables, Row{What: what, Unit: unit, Runs: []float64{value}})
}

// sizes adds a row for each name that a query gives, with its bytes by record.
func (p *Page) sizes(ctx context.Context, d *deployment.Deployment, when, sql string, records float64) error {
	text, err := d.Query(ctx, sql)
	if err != nil {
		return err
	}
	others := 0.0
	for line := range strings.Lines(text) {
		name, size, _ := strings.Cut(strings.TrimSpace(line), "\t")
		bytes, err := strconv.ParseFloat(size, 64)
		if err != nil {
			return err
		}
		if name != "records" {
			others += bytes
		}
		p.add("`"+name+"` "+when, "B", bytes/records)
	}
	if sql == tableSizes {
		p.add("all but records "+when, "B", others/records)
	}
	return nil
}

// span is the time in which an engine has written what tables are filled with.
const span = 30 * 24 * time.Hour

// store posts records of a source, of which there are so many then, and waits until
// they can be queried and merges have ended.
func (b *bench) store(ctx context.Context, d *deployment.Deployment, from load.Source, records, all int64) error {
	_, err := load.Run(ctx, load.Config{
		URL: d.URL, Token: d.Token, Records: records, Batch: 1000, Seed: uint64(all), Timeout: time.Minute, GiveUp: 5 * time.Minute, Source: from,
		Stored: func(ctx context.Context, _ load.Totals) error { return d.WaitRows(ctx, all) },
	})
	if err != nil {
		return err
	}
	return d.WaitMerged(ctx)
}
