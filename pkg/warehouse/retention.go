package warehouse

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Retention is the retention of a table in whole days after the day on which a row was stored.
type Retention struct {
	Table string
	Days  int // 0: unlimited
}

// Due is the last stored day that has expired at a time of ClickHouse's clock, such as 2025-11-21; empty if
// none ever does.
func (r Retention) Due(clock time.Time) string {
	if r.Days == 0 {
		return ""
	}
	return clock.UTC().AddDate(0, 0, -r.Days-1).Format(time.DateOnly)
}

// expiring are the tables whose rows have a stored time, with the start of that day in UTC, whatever the
// server's zone. Rows of aggregate tables combine records of different days: expiring some would leave
// partial objects, such as instances that never ended. Of these, whole trees are removed (History).
var expiring = []struct {
	table, day string
	whole      int // 1: only whole parts expire, and nothing is rewritten
}{
	{"records", "toStartOfDay(stored_at)", 1},
	{"counts_1m", "toDateTime(stored_day, 'UTC')", 1},
	{"changes", "toStartOfDay(changed_at)", 0}, // few, and always in one part
}

// minDays exceeds the lanes' history, which verify compares with the rows; mostDays is the limit of
// ClickHouse's time arithmetic.
const (
	minDays = 2
	maxDays = 10_000
)

// Retentions are the current retentions of the tables.
func (db *DB) Retentions(ctx context.Context) ([]Retention, error) {
	var all []Retention
	for _, t := range expiring {
		days, err := db.days(ctx, t.table)
		if err != nil {
			return nil, err
		}
		all = append(all, Retention{t.table, days})
	}
	h, err := db.History(ctx)
	return append(all, Retention{instances, h.Days}), err
}

var intervalDays = regexp.MustCompile(`\bTTL .*toIntervalDay\((\d+)\)`)

// days reads the retention of a table.
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
	return days - 1, err // after the stored day itself
}

// local is the table with the rows on each server.
func (db *DB) local(table string) string {
	if table == "changes" { // complete on every server
		return db.name + "." + table
	}
	return db.plain().Table(table)
}

// table is the index of the table in expiring, -1 if its rows do not expire.
func (r Retention) table() int {
	for i, t := range expiring {
		if t.table == r.Table {
			return i
		}
	}
	return -1
}

// Check fails if a retention cannot be set.
func (r Retention) Check() error {
	switch {
	case r.table() < 0 && r.Table != instances:
		return fmt.Errorf("%s has no retention: its rows have no stored time", r.Table)
	case r.Days != 0 && (r.Days < minDays || r.Days > maxDays):
		return fmt.Errorf("the retention of %s cannot be %d days: at least %d, as lanes and verify need the rows, and at most %d", r.Table, r.Days, minDays, maxDays)
	}
	return nil
}

// Retain sets the retention of a table. The expiry line must have moved before: see Due. It rewrites nothing
// and reads only the time column.
func (db *DB) Retain(ctx context.Context, r Retention) error {
	if err := r.Check(); err != nil {
		return err
	}
	if r.Table == instances {
		return db.setHistory(ctx, "keep", int64(r.Days))
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

// dueEarly is how much earlier a day counts as expired: clocks of servers differ, queries take time, and a
// longer retention is in force only once the tables have it.
const dueEarly = time.Hour

// Due is the last stored day whose rows or counters may have expired by a time of ClickHouse's clock, by the
// tables' retentions and those of more; empty if none.
func (db *DB) Due(ctx context.Context, clock time.Time, more ...Retention) (day string, err error) {
	all, err := db.Retentions(ctx)
	for _, r := range append(all, more...) {
		if r.Table != "changes" && r.Table != instances {
			day = max(day, r.Due(clock.Add(dueEarly)))
		}
	}
	return day, err
}
