package warehouse

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Retention is how long the rows of a table are kept after the day on which they were
// stored: so many whole days.
type Retention struct {
	Table string
	Days  int // 0 for ever
}

// Due is the last stored day that has expired by a time of ClickHouse's clock, such as
// 2025-11-21; empty when none ever does.
func (r Retention) Due(clock time.Time) string {
	if r.Days == 0 {
		return ""
	}
	return clock.UTC().AddDate(0, 0, -r.Days-1).Format(time.DateOnly)
}

// expiring are the tables whose rows say when they were stored, with the beginning of that
// day: UTC, whatever zone the server is in. A row of an aggregate table is made of many
// records that were stored at different times: to remove some of these would leave half
// of a thing, such as an instance that never ended.
var expiring = []struct {
	table, day string
	whole      int // 1 when rows go with the whole part they are in, and nothing is rewritten
}{
	{"records", "toStartOfDay(stored_at)", 1},
	{"counts_1m", "toDateTime(stored_day, 'UTC')", 1},
	{"changes", "toStartOfDay(changed_at)", 0}, // few, and in one part for ever
}

// leastDays is more than lanes keep what is stored, which verify compares with
// the rows; mostDays is what a time of ClickHouse can be added to.
const (
	leastDays = 2
	mostDays  = 10_000
)

// Retentions are those of the tables as they are now.
func (db *DB) Retentions(ctx context.Context) ([]Retention, error) {
	var all []Retention
	for _, t := range expiring {
		days, err := db.days(ctx, t.table)
		if err != nil {
			return nil, err
		}
		all = append(all, Retention{t.table, days})
	}
	return all, nil
}

var intervalDays = regexp.MustCompile(`\bTTL .*toIntervalDay\((\d+)\)`)

// days reads how long a table keeps its rows.
func (db *DB) days(ctx context.Context, table string) (int, error) {
	var engine string
	err := db.row(ctx, "read the retention of "+table, "SELECT engine_full FROM system.tables WHERE concat(database, '.', name) = ?", []any{db.local(table)}, &engine)
	if err != nil {
		return 0, err
	}
	m := intervalDays.FindStringSubmatch(engine)
	if m == nil {
		return 0, nil
	}
	days, err := strconv.Atoi(m[1])
	return days - 1, err // behind the stored day itself
}

// local is the table that holds the rows on each server.
func (db *DB) local(table string) string {
	if table == "changes" { // on every server whole
		return db.name + "." + table
	}
	return db.plain().Table(table)
}

// table is the index of the table in expiring, -1 when its rows do not expire.
func (r Retention) table() int {
	for i, t := range expiring {
		if t.table == r.Table {
			return i
		}
	}
	return -1
}

// Check says what is wrong with a retention that is to be set.
func (r Retention) Check() error {
	switch {
	case r.table() < 0:
		return fmt.Errorf("%s has no retention: its rows do not say when they were stored", r.Table)
	case r.Days != 0 && (r.Days < leastDays || r.Days > mostDays):
		return fmt.Errorf("%s cannot keep rows for %d days: at least %d, since lanes and verify count on them so long, and at most %d", r.Table, r.Days, leastDays, mostDays)
	}
	return nil
}

// Retain sets how long rows of a table are kept. What expires by it is to be known before:
// see Due. To set it rewrites nothing: of what is there only the column with the time is
// read.
func (db *DB) Retain(ctx context.Context, r Retention) error {
	if err := r.Check(); err != nil {
		return err
	}
	t := expiring[r.table()]
	now, err := db.days(ctx, r.Table)
	if err != nil || now == r.Days {
		return err
	}
	alter := fmt.Sprintf("ALTER TABLE %s%s ", db.local(r.Table), db.plain().OnCluster())
	if r.Days == 0 {
		return db.everywhere(ctx, alter+"REMOVE TTL")
	}
	if err := db.everywhere(ctx, fmt.Sprintf("%sMODIFY SETTING materialize_ttl_recalculate_only = 1, ttl_only_drop_parts = %d", alter, t.whole)); err != nil {
		return fmt.Errorf("prepare %s: %w", r.Table, err)
	}
	if err := db.everywhere(ctx, fmt.Sprintf("%sMODIFY TTL %s + INTERVAL %d DAY DELETE SETTINGS mutations_sync = 2", alter, t.day, r.Days+1)); err != nil {
		return fmt.Errorf("set the retention of %s: %w", r.Table, err)
	}
	return nil
}

// dueEarly is how long before its time a day counts as expired: the clocks of servers
// differ, a question takes its time, and a longer retention is in force only when the
// tables have it.
const dueEarly = time.Hour

// Due is the last stored day of which rows or counters may have expired by now, by
// ClickHouse's clock and the retentions that the tables have; empty when none may. If
// more is given, it is as if the tables had these retentions too.
func (db *DB) Due(ctx context.Context, more ...Retention) (day string, err error) {
	clock, err := db.Clock(ctx)
	if err != nil {
		return "", err
	}
	all, err := db.Retentions(ctx)
	for _, r := range append(all, more...) {
		if r.Table != "changes" {
			day = max(day, r.Due(clock.Add(dueEarly)))
		}
	}
	return day, err
}
