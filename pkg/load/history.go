package load

import (
	"time"

	"sluice/pkg/load/simulator"
)

// RecordsOfInstance is how many records an instance comes to, more or less.
const RecordsOfInstance = 122

// History plays an engine that writes so many records within a span, which ends a
// little before now. Its positions and keys are above those of every engine played
// before: no partition writes one in a microsecond.
func History(seed uint64, records int64, span time.Duration, now time.Time) *simulator.Engine {
	cfg := simulator.Config{
		Seed: seed, Start: now.Add(-span).UTC(), Every: span * (RecordsOfInstance - 4) / time.Duration(max(records, RecordsOfInstance)), First: now.UnixMicro(),
	}
	// How long so many take is chance, and nothing happens in the future.
	if late := lastOf(cfg, records).Sub(now); late > 0 {
		cfg.Start = cfg.Start.Add(-late)
	}
	return simulator.New(cfg)
}

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
