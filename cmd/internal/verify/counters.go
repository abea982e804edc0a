package verify

import (
	"context"
	"maps"
	"slices"
)

// counters compares what flow.counts_1m counts with the rows. Rows that were
// there at the beginning are counted, for their blocks are done; what is
// counted has a row now, or is known to have none of its own.
func (v *verifier) counters(ctx context.Context, lanes []*lane) error {
	if !v.settled {
		v.note("the counters were not compared: a block is in doubt")
		return nil
	}
	counted, err := v.db.CountedPerDay(ctx)
	if err != nil {
		return err
	}
	now, err := v.db.RowsPerDay(ctx)
	if err != nil {
		return err
	}
	for _, day := range slices.Sorted(maps.Keys(v.rows)) {
		if n, low := counted[day], v.rows[day]; n < low {
			v.problem("flow.counts_1m counts %d records of %s, and there are %d rows: it lacks %d. %s", n, day, low, low-n, v.mend(day))
		}
	}
	for _, day := range slices.Sorted(maps.Keys(counted)) {
		n, most := counted[day], now[day]+v.rowless[day]
		switch {
		case n <= most:
		case complete(lanes):
			v.problem("flow.counts_1m counts %d records of %s, and %d were stored: %d too many. %s", n, day, most, n-most, v.mend(day))
		default:
			v.note("flow.counts_1m counts %d records of %s, %d more than there are rows: records that were sent again and merged, or rows removed by hand; the lanes do not reach back to tell", n, day, n-most)
		}
	}
	return nil
}

// complete tells whether every record there ever was has been accounted for.
func complete(lanes []*lane) bool {
	for _, l := range lanes {
		if l.First > 1 || l.known > 0 {
			return false
		}
	}
	return true
}

func (v *verifier) mend(day string) string {
	return "To count the day again: sluice recount " + day
}
