package load

import (
	"time"

	"sluice/pkg/load/simulator"
)

// RecordsOfInstance is how many records an instance comes to, more or less.
const RecordsOfInstance = 122

// History plays an engine that writes so many records within a span, the last of them
// now. Its positions and keys are above those of every engine played before: no
// partition writes one in a microsecond.
func History(seed uint64, records int64, span time.Duration, now time.Time) *simulator.Engine {
	cfg := simulator.Config{
		Seed: seed, Start: now.Add(-span).UTC(), Every: span * (RecordsOfInstance - 4) / time.Duration(max(records, RecordsOfInstance)), First: now.UnixMicro(),
	}
	// How long so many take is chance, and nothing happens in the future.
	if last := lastOf(cfg, records); !last.IsZero() {
		cfg.Start = cfg.Start.Add(now.Sub(last))
	}
	return simulator.New(cfg)
}

// Day plays the last 24 hours of an engine: an instance each minute, and in the last hour,
// its busiest, a thousand and more.
func Day(seed uint64, now time.Time) Source {
	return past{now, simulator.New(simulator.Config{
		Seed: seed, Start: now.Add(-24 * time.Hour).UTC(), Every: time.Minute, Rush: now.Add(-time.Hour), RushEvery: 3200 * time.Millisecond, UnderWay: 2000, First: now.UnixMicro(),
	})}
}

// past is what an engine has written until now.
type past struct {
	now    time.Time
	engine *simulator.Engine
}

// Next gives the next record; false when there are no more.
func (p past) Next() (simulator.Record, bool) { return p.engine.NextBy(p.now) }

// fewRecords are those that chance matters to: more than that keep to their span.
const fewRecords = 1_000_000

// lastOf is when the last of few records happens.
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
