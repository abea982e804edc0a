package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/load"
)

// Drain is how fast an ingester empties a lane that has filled while there was none.
type Drain struct {
	Table   string // what it inserts into
	Setup   string // how
	Options string // of the ingester, for that

	Rate, Late       Row // when ClickHouse answers as it does, and when it answers later
	Ingester, Engine Row // CPU per million, at the former
	Memory           Row // resident memory of the ingester, peak, at the latter
}

// Ratio is what is left of the rate when ClickHouse answers later.
func (d Drain) Ratio() float64 { return d.Late.Median() / d.Rate.Median() }

const (
	// late is how much later ClickHouse answers.
	late = 50 * time.Millisecond

	// A database that stores nothing: an insert takes so long for each row as
	// flow.records and its aggregate tables take on one core that has nothing else to do
	// (docs/decisions/0037-what-the-table-costs.md), and next to no processor time.
	waitDatabase = "waits"
	waitPerRow   = 3 * time.Microsecond
)

// delay measures how fast one lane is emptied in each of several ways, while
// ClickHouse answers at once and later. On few cores that everything shares the
// engine is the limit and not the lane: so there is a second round with a database
// that waits in place of working, as one with cores to spare looks from outside.
func (b *bench) delay(ctx context.Context, page *Page) error {
	page.Delays = b.plan.delays
	return b.on(ctx, page, "delay", func(d *deployment.Deployment) error {
		if err := d.Remove(d.Process(deployment.Ingester)); err != nil { // each drain has an ingester of its own
			return err
		}
		if err := storeNothing(ctx, d); err != nil {
			return err
		}
		line, err := newDelayLine(d.Native)
		if err != nil {
			return err
		}
		defer line.close()
		rows := b.plan.blockRows
		one := []Drain{
			{Setup: "one insert at a time", Options: fmt.Sprintf("--block-inserts=1 --block-rows=%d", rows)},
			{Setup: "one at a time, of twice the block", Options: fmt.Sprintf("--block-inserts=1 --block-rows=%d", 2*rows)},
			{Setup: "two at once, of half a block each", Options: fmt.Sprintf("--block-inserts=2 --block-rows=%d", rows)},
			{Setup: "two at once, of a whole block each", Options: fmt.Sprintf("--block-inserts=2 --block-rows=%d", 2*rows)},
		}
		two := []Drain{{Setup: "two lanes, one insert at a time in each", Options: one[0].Options}}
		lanes := 1
		for _, round := range []struct {
			database string
			setups   []Drain
			lanes    int
		}{{"flow", one, 1}, {waitDatabase, one, 1}, {"flow", two, 2}, {waitDatabase, two, 2}} {
			for ; lanes < round.lanes; lanes++ {
				if _, err := d.Sluice(ctx, "lanes", "add", "--nats", d.NATSURL); err != nil {
					return err
				}
				if err := d.NextSource(); err != nil { // it gets both lanes
					return err
				}
			}
			drains, err := b.drains(ctx, d, line, round.database, round.setups)
			if err != nil {
				return err
			}
			page.Drains = append(page.Drains, drains...)
		}
		return nil
	})
}

// storeNothing makes the database that waits: by an ingester, for the schema.
func storeNothing(ctx context.Context, d *deployment.Deployment) error {
	ingester, err := d.AddIngesterTo(ctx, d.Native, waitDatabase)
	if err != nil {
		return err
	}
	if err := d.Remove(ingester); err != nil {
		return err
	}
	views, err := d.Query(ctx, "SELECT name FROM system.tables WHERE database = '"+waitDatabase+"' AND engine = 'MaterializedView'")
	if err != nil {
		return err
	}
	var all []string
	for _, view := range strings.Fields(views) {
		all = append(all, "DROP VIEW "+waitDatabase+"."+view+" SYNC")
	}
	columns, err := d.Query(ctx, `SELECT arrayStringConcat(groupArray(name || ' ' || type), ', ') FROM (
		SELECT name, type FROM system.columns WHERE database = '`+waitDatabase+`' AND table = 'records' AND default_kind != 'ALIAS' ORDER BY position)
		FORMAT TSVRaw`)
	if err != nil {
		return err
	}
	all = append(all,
		"DROP TABLE "+waitDatabase+".records SYNC",
		"CREATE TABLE "+waitDatabase+".records ("+columns+") ENGINE = Null",
		"CREATE TABLE "+waitDatabase+".waited (n UInt8) ENGINE = Null",
		fmt.Sprintf("CREATE MATERIALIZED VIEW %[1]s.wait TO %[1]s.waited AS SELECT sleepEachRow(%.7[2]f) AS n FROM %[1]s.records", waitDatabase, waitPerRow.Seconds()),
	)
	for _, sql := range all {
		if err := d.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// drains measures every setup with and without the delay, in turn.
func (b *bench) drains(ctx context.Context, d *deployment.Deployment, line *delayLine, database string, setups []Drain) ([]Drain, error) {
	all := append([]Drain{}, setups...)
	for n := range b.plan.delays {
		for i := range all {
			way := &all[i]
			way.Table = database
			for _, by := range []time.Duration{0, late} {
				line.by.Store(int64(by))
				got, err := b.drain(ctx, d, line.addr(), database, strings.Fields(way.Options))
				if err != nil {
					return nil, fmt.Errorf("%s, %s, %v later: %w", database, way.Setup, by, err)
				}
				b.note("%s, %s, %v later, run %d of %d: %s rec/s, ingester %s and engine %s CPU-s per million, %s MiB", database, way.Setup, by, n+1, b.plan.delays,
					number(got.rate), number(got.ingester), number(got.engine), number(got.memory))
				if by == 0 {
					way.Rate.Runs = append(way.Rate.Runs, got.rate)
					way.Ingester.Runs = append(way.Ingester.Runs, got.ingester)
					way.Engine.Runs = append(way.Engine.Runs, got.engine)
				} else {
					way.Late.Runs = append(way.Late.Runs, got.rate)
					way.Memory.Runs = append(way.Memory.Runs, got.memory)
				}
			}
		}
	}
	return all, nil
}

// drained is what emptying the lanes gave.
type drained struct {
	rate             float64 // records a second, from the end of the first block on
	ingester, engine float64 // CPU-seconds per million of these records
	memory           float64 // MiB
}

// drain fills the lanes while there is no ingester, and then watches one that
// empties them.
func (b *bench) drain(ctx context.Context, d *deployment.Deployment, native, database string, options []string) (got drained, err error) {
	if err := b.settle(ctx, d); err != nil {
		return got, err
	}
	filled, err := b.fill(ctx, d, b.plan.records)
	if err != nil {
		return got, err
	}
	ingester, err := d.AddIngesterTo(ctx, native, database, options...)
	if err != nil {
		return got, err
	}
	got, err = watchDrain(ctx, d, float64(filled.Acked.Records))
	if err := errors.Join(err, d.Remove(ingester)); err != nil {
		return got, err
	}
	if database == waitDatabase {
		return got, nil
	}
	return got, load.StoredIn(d.HTTP)(ctx, filled.Acked)
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

// watchDrain watches the ingester until it has stored so many records. What it does
// before its first block is not counted: it looks where the tables end.
func watchDrain(ctx context.Context, d *deployment.Deployment, records float64) (got drained, err error) {
	const pause, patience = 20 * time.Millisecond, time.Minute
	ingester, engine := d.Process(deployment.Ingester), d.Process(deployment.Engine)
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
		got.memory = math.Max(got.memory, m["process_resident_memory_bytes"]/(1<<20))
		if now.rows > last.rows {
			if now.ingester, err = load.CPUTime(ingester.PID()); err != nil {
				return got, err
			}
			if now.engine, err = load.CPUTime(engine.PID()); err != nil {
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
	got.engine = (last.engine - first.engine).Seconds() / millions
	return got, nil
}

// sighting is how many rows were stored at a time, and what that had taken.
type sighting struct {
	rows             float64
	moved            time.Time
	ingester, engine time.Duration
}

// delayLine is a TCP proxy that holds each byte from the target for a time, as a
// long line does: what comes later does not wait for what came before.
type delayLine struct {
	listener net.Listener
	target   string
	by       atomic.Int64 // nanoseconds
	passing  sync.WaitGroup
}

func newDelayLine(target string) (*delayLine, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &delayLine{listener: listener, target: target}
	l.passing.Go(l.accept)
	return l, nil
}

func (l *delayLine) addr() string { return l.listener.Addr().String() }

// close returns when the connections have ended, which is up to those who use them.
func (l *delayLine) close() {
	l.listener.Close()
	l.passing.Wait()
}

func (l *delayLine) accept() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", l.target)
		if err != nil {
			near.Close()
			continue
		}
		l.passing.Go(func() {
			_, _ = io.Copy(far, near) // how it ends, the other side sees
			far.Close()
		})
		l.passing.Go(func() {
			l.hold(near, far)
			near.Close()
		})
	}
}

// held is what came from the target, and when it is due.
type held struct {
	bytes []byte
	due   time.Time
}

// hold passes on what comes from far, each time so much later.
func (l *delayLine) hold(near io.Writer, far io.Reader) {
	line := make(chan held, 1024)
	l.passing.Go(func() {
		defer close(line)
		for {
			buf := make([]byte, 16<<10)
			n, err := far.Read(buf)
			line <- held{buf[:n], time.Now().Add(time.Duration(l.by.Load()))}
			if err != nil {
				return
			}
		}
	})
	broken := false
	for h := range line {
		time.Sleep(time.Until(h.due))
		if !broken {
			_, err := near.Write(h.bytes)
			broken = err != nil
		}
	}
}
