package load

import (
	"time"

	"sluice/pkg/load/simulator"
)

// RecordsOfInstance is the approximate number of records of an instance.
const RecordsOfInstance = 122

// History simulates an engine that writes this many records within a span up to now. Its
// positions and keys are above those of every earlier engine, as no partition writes one
// per microsecond.
func History(seed uint64, records int64, span time.Duration, now time.Time) *simulator.Engine {
	cfg := simulator.Config{
		Seed: seed, Start: now.Add(-span).UTC(), Every: span * (RecordsOfInstance - 4) / time.Duration(max(records, RecordsOfInstance)), First: now.UnixMicro(),
	}
	// The duration of few records is random, and none may be in the future.
	if last := lastOf(cfg, records); !last.IsZero() {
		cfg.Start = cfg.Start.Add(now.Sub(last))
	}
	return simulator.New(cfg)
}

// Day simulates the last 24 hours of an engine: an instance per minute, and more than a
// thousand in the last hour.
func Day(seed uint64, now time.Time) Source {
	return past{now, simulator.New(simulator.Config{
		Seed: seed, Start: now.Add(-24 * time.Hour).UTC(), Every: time.Minute, Rush: now.Add(-time.Hour), RushEvery: 3200 * time.Millisecond, UnderWay: 2000, First: now.UnixMicro(),
	})}
}

// past is the records of an engine up to now.
type past struct {
	now    time.Time
	engine *simulator.Engine
}

func (p past) Next() (simulator.Record, bool) { return p.engine.NextBy(p.now) }

// fewRecords is the limit below which the random duration matters.
const fewRecords = 1_000_000

// lastOf returns the time of the last record, zero for many records.
func lastOf(cfg simulator.Config, records int64) (last time.Time) {
	if records > fewRecords {
		return last
	}
	engine := simulator.New(cfg)
	for range records {
		r, _ := engine.Next()
		if at := time.UnixMilli(r.Timestamp); at.After(last) {
			last = at
		}
	}
	return last
}
