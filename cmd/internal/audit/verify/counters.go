package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"sluice/pkg/flow"
	"sluice/pkg/warehouse"
)

// counters compares what flow.counts_1m counts with the rows. Rows that were
// there at the beginning are counted, for their blocks are done; what is
// counted has a row now, or is known to have none of its own.
func (v *verifier) counters(ctx context.Context) error {
	if !v.settled {
		v.note("the counters were not compared: a block is in doubt")
		return nil
	}
	counted, err := v.db.CountedPerDay(ctx, v.line)
	if err != nil {
		return err
	}
	now, err := v.db.RowsPerDay(ctx, v.line)
	if err != nil {
		return err
	}
	for _, day := range slices.Sorted(maps.Keys(v.rows)) {
		if n, low := counted[day], v.rows[day]; n < low {
			v.problem("flow.counts_1m counts %d records of %s, and there are %d rows: it lacks %d. %s", n, day, low, low-n, v.mend(day))
		}
	}
	for _, day := range slices.Sorted(maps.Keys(counted)) {
		n, most := counted[day], now[day]+v.rowlessDays[day]
		if n > most {
			v.problem("flow.counts_1m counts %d records of %s, and %d were stored: %d too many. %s", n, day, most, n-most, v.mend(day))
		}
	}
	return nil
}

// doubts names the days for a recount that an ingester has named. When those that were
// stored then have expired, nothing of them can be proved any more.
func (v *verifier) doubts(lane int, all []flow.Doubt) {
	for _, d := range all {
		if d.Stored > v.line {
			v.report.recount(d.Day)
		} else {
			v.note("the counters of %s were in doubt, as far as lane %d has stored them on %s: these have expired, unproved", d.Day, lane, d.Stored)
		}
	}
}

// duplicates looks for records that have two rows, wherever they came from.
func (v *verifier) duplicates(ctx context.Context, lanes []*lane) error {
	return v.db.Duplicates(ctx, func(d warehouse.Duplicate) {
		many := d.Rows - 1
		if slices.ContainsFunc(lanes, func(l *lane) bool { return l.has(d) }) {
			many = d.Places - 1 // rows of one place were found when it was read
		}
		if many == 0 {
			return
		}
		v.report.Duplicated += many
		v.find(Finding{Kind: Doubled, Lane: d.Lane, Sequence: d.Seq, Index: int(d.Idx), ID: d.ID, Detail: fmt.Sprintf("the same record has %d rows", d.Rows)})
	})
}

// has tells whether a row is of a message that was read.
func (l *lane) has(d warehouse.Duplicate) bool {
	return d.Lane == l.Lane.Lane && d.Incarnation == l.position.Incarnation() && l.First <= d.Seq && d.Seq <= l.Settled
}

func (v *verifier) mend(day string) string {
	v.report.recount(day)
	return "To count the day again: sluice recount " + day
}
