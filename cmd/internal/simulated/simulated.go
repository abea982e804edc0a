// Package simulated posts what a simulated workflow engine writes by the means of
// the load generator.
package simulated

import (
	"time"

	"sluice/pkg/load"
	"sluice/pkg/load/simulator"
)

// OfInstance is how many records an instance comes to, more or less.
const OfInstance = 122

// Engine plays an engine that writes so many records within a span, which ends a
// little before now. Its positions and keys are above those of every engine played
// before: no partition writes one in a microsecond.
func Engine(seed uint64, records int64, span time.Duration, now time.Time) *simulator.Engine {
	cfg := simulator.Config{
		Seed: seed, Start: now.Add(-span).UTC(), Every: span * (OfInstance - 4) / time.Duration(max(records, OfInstance)), First: now.UnixMicro(),
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

// Writer writes what an engine does, in the order in which it happens. It is a
// load.Writer.
type Writer struct{ Engine *simulator.Engine }

// AppendBatch writes n records. An engine that exports no commands leaves gaps
// between positions, so no ranges are told.
func (s *Writer) AppendBatch(dst []byte, n int) ([]byte, load.Totals, []load.Range) {
	sum := load.Totals{}
	dst = append(dst, '[')
	for range n {
		r, more := s.Engine.Next()
		if !more {
			break
		}
		if sum.Records == 0 {
			sum.MinPosition, sum.MaxPosition = r.Position, r.Position
		} else {
			dst = append(dst, ',')
		}
		dst = append(dst, r.JSON...)
		sum.Records++
		sum.Bytes += int64(len(r.JSON))
		sum.KeySum += r.Key
		sum.PositionSum += r.Position
		sum.MinPosition, sum.MaxPosition = min(sum.MinPosition, r.Position), max(sum.MaxPosition, r.Position)
	}
	return append(dst, ']'), sum, nil
}
