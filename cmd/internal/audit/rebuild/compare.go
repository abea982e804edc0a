package rebuild

import (
	"context"
	"fmt"
	"time"

	"sluice/pkg/warehouse"
)

// Report is the result of the comparison.
type Report struct {
	OK          bool         `json:"ok"` // the tables hold the same records
	Lanes       []Lane       `json:"lanes"`
	Differences []Difference `json:"differences,omitempty"`
	Swap        []string     `json:"swap"` // statements that swap the rebuilt tables in
}

type Lane struct {
	Lane    int    `json:"lane"`
	First   uint64 `json:"first"`
	Last    uint64 `json:"last"`
	Live    uint64 `json:"live"`    // rows
	Rebuilt uint64 `json:"rebuilt"` // rows
	Differ  int    `json:"differ"`  // minutes with different records
}

// Difference is a record that is in only one of the tables, or twice in one.
type Difference struct {
	Lane   int       `json:"lane"`
	Minute time.Time `json:"minute"`
	Kind   string    `json:"kind"`
	Seq    uint64    `json:"sequence,omitempty"`
	Index  uint32    `json:"index"`
	ID     string    `json:"id,omitempty"`
}

func (r *rebuild) compare(ctx context.Context, lanes []*lane) (*Report, error) {
	report := &Report{OK: true}
	for _, l := range lanes {
		if l.last < l.first {
			report.Lanes = append(report.Lanes, Lane{Lane: l.info.Number, First: l.first, Last: l.last})
			continue
		}
		live, rebuilt, diffs, err := r.into.Diffs(ctx, l.info.Number, l.state.Incarnation(), l.first, l.last, r.line)
		if err != nil {
			return nil, err
		}
		line := Lane{Lane: l.info.Number, First: l.first, Last: l.last, Live: live, Rebuilt: rebuilt}
		for _, c := range diffs {
			differs, err := l.explain(ctx, c, report)
			if err != nil {
				return nil, err
			}
			if differs {
				line.Differ++
				report.OK = false
			}
		}
		report.Lanes = append(report.Lanes, line)
	}
	var err error
	report.Swap, err = r.into.Swap(ctx)
	return report, err
}

// explain names the differing records of a minute.
func (l *lane) explain(ctx context.Context, c warehouse.Diff, report *Report) (differs bool, err error) {
	live, rebuilt, err := l.into.Only(ctx, l.info.Number, l.state.Incarnation(), l.first, l.last, l.line, c.Minute, l.cfg.Limit)
	if err != nil {
		return false, err
	}
	name := func(rows []warehouse.Row, kind string) {
		for _, r := range rows {
			differs = true
			if len(report.Differences) < l.cfg.Limit {
				report.Differences = append(report.Differences, Difference{l.info.Number, c.Minute, kind, r.Seq, r.Idx, r.ID})
			}
		}
	}
	name(rebuilt, "missing")
	name(live, "not among the accepted records")
	doubles, err := l.into.Live().Doubles(ctx, l.info.Number, l.state.Incarnation(), l.first, l.last, c.Minute)
	if err == nil && doubles > 0 {
		differs = true
		if len(report.Differences) < l.cfg.Limit {
			report.Differences = append(report.Differences, Difference{Lane: l.info.Number, Minute: c.Minute, Kind: fmt.Sprintf("%d duplicate rows: sluice verify names them", doubles)})
		}
	}
	return differs, err
}
