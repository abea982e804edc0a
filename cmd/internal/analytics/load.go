package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"sluice/cmd/internal/parts"
	"sluice/cmd/internal/simulated"
	"sluice/pkg/load"
	"sluice/pkg/load/simulator"
)

// span is the time in which all records happen.
const span = 30 * 24 * time.Hour

// bench is a measurement under way.
type bench struct {
	*parts.Stage
	dir     string // of the data
	engine  *simulator.Engine
	loaded  int64 // records posted
	copies  int
	figures *figures
	log     io.Writer
}

// newBench begins with an engine that writes all records in a month that ends now.
func newBench(stage *parts.Stage, dir string, records int64) *bench {
	return &bench{
		Stage: stage, dir: dir, log: os.Stderr,
		engine: simulator.New(simulator.Config{
			Seed: 1, Start: time.Now().Add(-span).UTC(), Every: span * simulated.OfInstance / time.Duration(records),
			Tenants: []string{"<default>", "acme", "globex"},
		}),
		figures: newFigures(),
	}
}

// step brings the tables to so many records, and asks.
func (b *bench) step(ctx context.Context, records int64, load func(context.Context, int64) error) error {
	s := &step{Records: records, Load: loadAverage(), Copies: b.copies}
	if load != nil {
		b.say("load up to %d records", records)
		began := time.Now()
		if err := load(ctx, records); err != nil {
			return err
		}
		s.Took = time.Since(began).Seconds()
	}
	b.say("wait for merges")
	if err := b.Settle(ctx); err != nil {
		return err
	}
	b.say("ask")
	if err := b.ask(ctx, s); err != nil {
		return err
	}
	b.figures.Steps = append(b.figures.Steps, s)
	return nil
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.log, "%s %s\n", time.Now().UTC().Format(time.TimeOnly), fmt.Sprintf(format, args...)) // a terminal that is gone is no reason to fail
}

// load posts what is missing to the api, and waits until it can be queried.
func (b *bench) load(ctx context.Context, records int64) error {
	_, err := load.Run(ctx, load.Config{
		URL: b.URL, Token: b.Token, Records: records - b.loaded, Batch: 1000, Progress: b.log, Seed: uint64(records), Timeout: time.Minute, GiveUp: 5 * time.Minute,
		Writer: &simulated.Writer{Engine: b.engine},
		Stored: func(ctx context.Context, _ load.Totals) error { return b.Stored(ctx, records) },
	})
	b.loaded = records
	return err
}

// copy stores what was posted once more: as the records of another engine, all
// of them a month earlier than the ones before. The folds hear of them as of any
// others. Due dates within extra stay what they were.
func (b *bench) copy(ctx context.Context) error {
	b.copies++
	b.say("copy all records, copy %d", b.copies)
	days := strconv.Itoa(b.copies * int(span.Hours()/24))
	err := b.Exec(ctx, `INSERT INTO flow.records SELECT r.* REPLACE ('load-copy-`+strconv.Itoa(b.copies)+`' AS source, r.ts - toIntervalDay(`+days+`) AS ts,
		if(r.deadline > 0, r.deadline - 86400000 * `+days+`, r.deadline) AS deadline) FROM flow.records AS r WHERE r.source = 'load'
		SETTINGS max_partitions_per_insert_block = 0, max_insert_block_size = 500000, min_insert_block_size_rows = 500000`)
	if err != nil {
		return err
	}
	return b.Stored(ctx, b.loaded*int64(1+b.copies))
}
