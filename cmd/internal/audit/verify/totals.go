package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sluice/pkg/flow"
)

// before accounts for the messages that were not read, because they were purged or are
// older than Config.Since: the totals minus the messages read must equal the table's rows
// of the others.
func (l *lane) before(ctx context.Context) error {
	p := l.position
	if l.kept.Forgotten > 0 { // the log does not show which of these were deduplicated: one sum
		p.Totals.Deduplicated, p.Totals.Forgotten = p.Totals.Deduplicated+p.Totals.Forgotten, 0
		l.kept.Deduplicated, l.kept.Forgotten = l.kept.Deduplicated+l.kept.Forgotten, 0
	}
	purged, ok := subtract(p.Totals, l.kept)
	switch {
	case !ok:
		l.problem("the totals of lane %d are %s, less than its messages up to %d: %s; an earlier lane state was restored, or it was edited",
			l.Lane.Lane, text(p.Totals), l.Settled, text(l.kept))
		return nil
	case p.Totals.Read != p.Totals.Sum():
		l.problem("the totals of lane %d do not add up: %s", l.Lane.Lane, text(p.Totals))
	}
	l.Purged = purged
	if l.First <= p.Base()+1 {
		if purged != (flow.Totals{}) {
			l.problem("the totals of lane %d are %s, but its messages, none of which is purged, are %s", l.Lane.Lane, text(p.Totals), text(l.kept))
		}
		return nil
	}
	// Some expired rows are merged away and some are not: only rows and totals after the
	// expiry line are compared. All messages read are after it.
	kept, _, known := p.Unexpired(l.line)
	stored := max(kept, l.kept.Stored) - l.kept.Stored
	rows, err := l.db.RowsBefore(ctx, l.Lane.Lane, p.Incarnation(), l.First, l.line)
	if err != nil {
		return err
	}
	l.Before = rows
	if l.ForgottenBefore, err = l.db.ForgottenBefore(ctx, l.Lane.Lane, p.Incarnation(), l.First, l.line); err != nil {
		return err
	}
	rows += l.ForgottenBefore
	if purged.Stored > stored && l.line != "" {
		l.note("%d rows of lane %d, stored up to %s, are expired", purged.Stored-stored, l.Lane.Lane, l.line)
	}
	switch {
	case rows == stored:
	case rows < stored && !known:
		l.note("lane %d stored rows on more than %d days, and the earliest have partly expired: up to %d rows of messages before %d are expired or missing", l.Lane.Lane, flow.MaxStoredDays, stored-rows, l.First)
	case rows < stored:
		days, err := l.lacking(ctx)
		if err != nil {
			return err
		}
		l.problem("the table has %d rows of the purged messages of lane %d before %d, but %d were stored: %d are missing%s",
			rows, l.Lane.Lane, l.First, stored, stored-rows, days)
	default:
		l.problem("the table has %d rows of the purged messages of lane %d before %d, but %d were stored: %d are surplus",
			rows, l.Lane.Lane, l.First, stored, rows-stored)
	}
	return nil
}

// lacking names the stored days with fewer rows in the table than were stored.
func (l *lane) lacking(ctx context.Context) (string, error) {
	have, err := l.db.RowsByStoredDay(ctx, l.Lane.Lane, l.position.Incarnation(), l.Settled, l.line)
	if err != nil {
		return "", err
	}
	stored := map[string]uint64{}
	for _, d := range l.position.StoredDays {
		if d.Day > l.line {
			stored[d.Day] += d.Rows
		}
	}
	var text strings.Builder
	for _, day := range slices.Sorted(maps.Keys(stored)) {
		if n := have[day]; n < stored[day] {
			fmt.Fprintf(&text, "; %d of %d stored on %s are left", n, stored[day], day)
		}
	}
	return text.String(), nil
}

// subtract is t minus read; not ok if read exceeds t.
func subtract(t, read flow.Totals) (rest flow.Totals, ok bool) {
	ok = read.Read <= t.Read && read.Stored <= t.Stored && read.Deduplicated <= t.Deduplicated &&
		read.DeadLettered <= t.DeadLettered && read.Forgotten <= t.Forgotten && read.Void <= t.Void
	return flow.Totals{
		Read: t.Read - read.Read, Stored: t.Stored - read.Stored, Deduplicated: t.Deduplicated - read.Deduplicated,
		DeadLettered: t.DeadLettered - read.DeadLettered, Forgotten: t.Forgotten - read.Forgotten, Void: t.Void - read.Void,
	}, ok
}

func text(t flow.Totals) string {
	return fmt.Sprintf("%d records, %d stored, %d deduplicated, %d dead-lettered, %d forgotten, %d void", t.Read, t.Stored, t.Deduplicated, t.DeadLettered, t.Forgotten, t.Void)
}
