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

	"sluice/cmd/internal/parts"
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
	// flow.records and its folds take on one core that has nothing else to do
	// (docs/decisions/0037-what-the-table-costs.md), and next to no processor time.
	waitDatabase = "waits"
	waitPerRow   = 3 * time.Microsecond
)

// delay measures how fast one lane is emptied in each of several ways, while
// ClickHouse answers at once and later. On few cores that everything shares the
// engine is the limit and not the lane: so there is a second round with a database
// that waits in place of working, as one with cores to spare looks from outside.
func (b *bench) delay(ctx context.Context, page *Page) error {
	return b.on(ctx, onlyDelay, func(s *parts.Stage) error {
		if err := page.Versions.ask(ctx, s); err != nil {
			return err
		}
		if err := s.StopLast(); err != nil { // each drain has an ingester of its own
			return err
		}
		if err := storeNothing(ctx, s); err != nil {
			return err
		}
		line, err := newDelayLine(s.Native)
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
				if err := s.Sluice(ctx, "lanes", "add", "--nats", s.NATS); err != nil {
					return err
				}
				if err := s.NextSource(); err != nil { // it gets both lanes
					return err
				}
			}
			drains, err := b.drains(ctx, s, line, round.database, round.setups)
			if err != nil {
				return err
			}
			page.Drains = append(page.Drains, drains...)
		}
		return nil
	})
}

// storeNothing makes the database that waits: by an ingester, for the schema.
func storeNothing(ctx context.Context, s *parts.Stage) error {
	if err := s.AddIngesterTo(ctx, s.Native, waitDatabase); err != nil {
		return err
	}
	if err := s.StopLast(); err != nil {
		return err
	}
	views, err := s.Query(ctx, "SELECT name FROM system.tables WHERE database = '"+waitDatabase+"' AND engine = 'MaterializedView'")
	if err != nil {
		return err
	}
	var all []string
	for _, view := range strings.Fields(views) {
		all = append(all, "DROP VIEW "+waitDatabase+"."+view+" SYNC")
	}
	columns, err := s.Query(ctx, `SELECT arrayStringConcat(groupArray(name || ' ' || type), ', ') FROM (
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
		if err := s.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// drains measures every setup with and without the delay, in turn.
func (b *bench) drains(ctx context.Context, s *parts.Stage, line *delayLine, database string, setups []Drain) ([]Drain, error) {
	all := append([]Drain{}, setups...)
	for n := range b.plan.runs {
		for i := range all {
			d := &all[i]
			d.Table = database
			for _, by := range []time.Duration{0, late} {
				line.by.Store(int64(by))
				got, err := b.drain(ctx, s, line.addr(), database, strings.Fields(d.Options))
				if err != nil {
					return nil, fmt.Errorf("%s, %s, %v later: %w", database, d.Setup, by, err)
				}
				b.note("%s, %s, %v later, run %d of %d: %s rec/s, ingester %s and engine %s CPU-s per million, %s MiB", database, d.Setup, by, n+1, b.plan.runs,
					number(got.rate), number(got.ingester), number(got.engine), number(got.memory))
				if by == 0 {
					d.Rate.Runs = append(d.Rate.Runs, got.rate)
					d.Ingester.Runs = append(d.Ingester.Runs, got.ingester)
					d.Engine.Runs = append(d.Engine.Runs, got.engine)
				} else {
					d.Late.Runs = append(d.Late.Runs, got.rate)
					d.Memory.Runs = append(d.Memory.Runs, got.memory)
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
func (b *bench) drain(ctx context.Context, s *parts.Stage, native, database string, options []string) (d drained, err error) {
	if err := b.settle(ctx, s); err != nil {
		return d, err
	}
	b.seed++
	start := time.Now()
	filled, err := load.Run(ctx, load.Config{
		URL: s.URL, Token: s.Token, Seed: b.seed, Start: start, After: start.UnixMicro(),
		Batch: 1000, Connections: connections, Records: b.plan.records,
	})
	if err != nil {
		return d, err
	}
	if err := s.AddIngesterTo(ctx, native, database, options...); err != nil {
		return d, err
	}
	d, err = watchDrain(ctx, s, float64(filled.Acked.Records))
	if err := errors.Join(err, s.StopLast()); err != nil {
		return d, err
	}
	if database == waitDatabase {
		return d, nil
	}
	return d, load.StoredIn(s.HTTP)(ctx, filled.Acked)
}

// watchDrain watches the ingester until it has stored so many records. What it does
// before its first block is not counted: it looks where the tables end.
func watchDrain(ctx context.Context, s *parts.Stage, records float64) (d drained, err error) {
	const pause, patience = 20 * time.Millisecond, time.Minute
	ingester, engine := s.Ingesters()[0], s.Part(parts.Engine)
	var first, last sighting
	for last.rows < records {
		if last.rows > 0 && time.Since(last.moved) > patience {
			return d, fmt.Errorf("%w: %.0f of %.0f for a minute", load.ErrNotStored, last.rows, records)
		}
		m, err := ingester.Metrics(ctx)
		if err != nil {
			return d, err
		}
		now := sighting{moved: time.Now()}
		for name, value := range m {
			if strings.HasPrefix(name, "sluice_ingest_rows_total{") {
				now.rows += value
			}
		}
		d.memory = math.Max(d.memory, m["process_resident_memory_bytes"]/(1<<20))
		if now.rows > last.rows {
			if now.ingester, err = load.CPUTime(ingester.PID()); err != nil {
				return d, err
			}
			if now.engine, err = load.CPUTime(engine.PID()); err != nil {
				return d, err
			}
			if last = now; first.rows == 0 {
				first = now
			}
		}
		select {
		case <-ctx.Done():
			return d, ctx.Err()
		case <-time.After(pause):
		}
	}
	millions := (last.rows - first.rows) / 1e6
	d.rate = millions * 1e6 / last.moved.Sub(first.moved).Seconds()
	d.ingester = (last.ingester - first.ingester).Seconds() / millions
	d.engine = (last.engine - first.engine).Seconds() / millions
	return d, nil
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
