package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"sluice/pkg/flow"
	"sluice/pkg/warehouse"
)

// counters compares flow.counts_1m with the rows. Their blocks being done, all rows of the
// start must be counted. Every counted record must have a row now, or be missing.
func (v *verifier) counters(ctx context.Context) error {
	if !v.settled {
		v.note("counters were not compared: a claimed block is in doubt; run sluice verify again once it is stored")
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
			v.problem("flow.counts_1m counts %d records of %s for %d rows: %d are missing. %s", n, day, low, low-n, v.remedy(day))
		}
	}
	for _, day := range slices.Sorted(maps.Keys(counted)) {
		n, high := counted[day], now[day]+v.rowlessDays[day]
		if n > high {
			v.problem("flow.counts_1m counts %d records of %s, but %d were stored: %d are surplus. %s", n, day, high, n-high, v.remedy(day))
		}
	}
	return nil
}

// doubts adds the days that an ingester lists for a recount. Rows that have expired since
// can no longer be compared.
func (v *verifier) doubts(lane int, all []flow.Doubt) {
	for _, d := range all {
		if d.Stored > v.line {
			v.report.recount(d.Day)
		} else {
			v.note("counters of %s were in doubt for records that lane %d stored on %s: these have expired and cannot be compared", d.Day, lane, d.Stored)
		}
	}
}

// duplicates finds records with several rows in the whole table.
func (v *verifier) duplicates(ctx context.Context, lanes []*lane) error {
	return v.db.Duplicates(ctx, v.line, func(d warehouse.Duplicate) {
		many := d.Rows - 1
		if slices.ContainsFunc(lanes, func(l *lane) bool { return l.has(d) }) {
			many = d.Places - 1 // inspectPlace reported several rows of one place
		}
		if many == 0 {
			return
		}
		v.report.Duplicated += many
		v.find(Finding{Kind: Doubled, Lane: d.Lane, Sequence: d.Seq, Index: int(d.Idx), ID: d.ID, Detail: fmt.Sprintf("the same record has %d rows", d.Rows)})
	})
}

// has reports whether the row's message was read.
func (l *lane) has(d warehouse.Duplicate) bool {
	return d.Lane == l.Lane.Lane && d.Incarnation == l.position.Incarnation() && l.First <= d.Seq && d.Seq <= l.Settled
}

func (v *verifier) remedy(day string) string {
	v.report.recount(day)
	return "Remedy: sluice recount " + day
}
