package verify

import (
	"context"
	"fmt"
	"time"

	"sluice/pkg/flow"
)

// before accounts for the messages that were not read, because they were purged
// or are older than asked for: what the totals count beyond what was read must
// be what the table has rows of.
func (l *lane) before(ctx context.Context) error {
	p := l.position
	if l.kept.Forgotten > 0 { // the log cannot tell which of these came again: one sum
		p.Totals.Deduplicated, p.Totals.Forgotten = p.Totals.Deduplicated+p.Totals.Forgotten, 0
		l.kept.Deduplicated, l.kept.Forgotten = l.kept.Deduplicated+l.kept.Forgotten, 0
	}
	purged, ok := subtract(p.Totals, l.kept)
	switch {
	case !ok:
		l.problem("the totals of lane %d are %s, and more was read of its messages up to %d: %s; the position is of an earlier time, or was changed by hand",
			l.Lane.Lane, text(p.Totals), l.Settled, text(l.kept))
		return nil
	case p.Totals.Read != p.Totals.Sum():
		l.problem("the totals of lane %d do not add up: %s", l.Lane.Lane, text(p.Totals))
	}
	l.Purged = purged
	if l.First <= p.Base()+1 && !l.gaps {
		if purged != (flow.Totals{}) {
			l.problem("the totals of lane %d are %s, but its messages, which are all there, come to %s", l.Lane.Lane, text(p.Totals), text(l.kept))
		}
		return nil
	}
	rows, err := l.db.RowsBefore(ctx, l.Lane.Lane, p.Incarnation(), l.First)
	if err != nil {
		return err
	}
	l.Before = rows
	if l.ForgottenBefore, err = l.db.ForgottenBefore(ctx, l.Lane.Lane, p.Incarnation(), l.First); err != nil {
		return err
	}
	rows += l.ForgottenBefore
	kept, err := l.db.Kept(ctx)
	if err != nil {
		return err
	}
	switch {
	case rows == purged.Stored:
	case l.gaps:
		l.note("the rows of the messages of lane %d that were purged meanwhile were not counted: run it again", l.Lane.Lane)
	case rows < purged.Stored && time.Since(time.UnixMilli(int64(p.Incarnation()))) > kept:
		l.note("%d rows of messages of lane %d before %d are not there any more: the oldest have expired", purged.Stored-rows, l.Lane.Lane, l.First)
	case rows < purged.Stored:
		l.problem("the table has %d rows of the messages of lane %d before %d, which are not read any more, and %d were stored: %d are missing",
			rows, l.Lane.Lane, l.First, purged.Stored, purged.Stored-rows)
	default:
		l.problem("the table has %d rows of the messages of lane %d before %d, which are not read any more, and %d were stored: %d are too many",
			rows, l.Lane.Lane, l.First, purged.Stored, rows-purged.Stored)
	}
	return nil
}

// subtract takes what was read from the totals; not ok when it is more.
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
