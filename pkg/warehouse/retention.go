package warehouse

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Retention is how long the rows of a table are kept after they were stored.
type Retention struct {
	Table string
	Days  int // 0 for ever
}

// expiring are the tables whose rows say when they were stored, with the column that does.
// A row of an aggregate table is made of many records that were stored at different times:
// to remove some of these would leave half of a thing, such as an instance that never
// ended.
var expiring = []struct {
	table, column string
	whole         int // 1 when rows go with the whole part they are in, and nothing is rewritten
}{
	{"records", "toDateTime(stored_at)", 1},
	{"counts_1m", "stored_day", 1},
	{"changes", "toDateTime(changed_at)", 0}, // few, and in one part for ever
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
	return strconv.Atoi(m[1])
}

// local is the table that holds the rows on each server.
func (db *DB) local(table string) string {
	if table == "changes" { // on every server whole
		return db.name + "." + table
	}
	return db.plain().Table(table)
}

// Retain sets how long rows of a table are kept. To set it rewrites nothing: of
// what is there only the column with the time is read.
func (db *DB) Retain(ctx context.Context, r Retention) error {
	column, whole := "", 0
	for _, t := range expiring {
		if t.table == r.Table {
			column, whole = t.column, t.whole
		}
	}
	switch {
	case column == "":
		return fmt.Errorf("%s has no retention: its rows do not say when they were stored", r.Table)
	case r.Days != 0 && (r.Days < leastDays || r.Days > mostDays):
		return fmt.Errorf("%s cannot keep rows for %d days: at least %d, since lanes and verify count on them so long, and at most %d", r.Table, r.Days, leastDays, mostDays)
	}
	now, err := db.days(ctx, r.Table)
	if err != nil || now == r.Days {
		return err
	}
	alter := fmt.Sprintf("ALTER TABLE %s%s ", db.local(r.Table), db.plain().OnCluster())
	if now > 0 && (r.Days == 0 || r.Days > now) {
		// What has expired until now does not come back: verify has to know. A
		// crash behind this leaves a note that is true.
		about, gone, err := db.expired(ctx, r.Table)
		if err != nil {
			return err
		}
		if until := time.Now().AddDate(0, 0, -now); until.After(gone) {
			if err := db.everywhere(ctx, alter+"MODIFY COMMENT "+quote(about+expiredBefore+until.UTC().Format(time.RFC3339))); err != nil {
				return fmt.Errorf("note what has expired of %s: %w", r.Table, err)
			}
		}
	}
	if r.Days == 0 {
		return db.everywhere(ctx, alter+"REMOVE TTL")
	}
	if err := db.everywhere(ctx, fmt.Sprintf("%sMODIFY SETTING materialize_ttl_recalculate_only = 1, ttl_only_drop_parts = %d", alter, whole)); err != nil {
		return fmt.Errorf("prepare %s: %w", r.Table, err)
	}
	if err := db.everywhere(ctx, fmt.Sprintf("%sMODIFY TTL %s + INTERVAL %d DAY DELETE SETTINGS mutations_sync = 2", alter, column, r.Days)); err != nil {
		return fmt.Errorf("set the retention of %s: %w", r.Table, err)
	}
	return nil
}

// expiredBefore begins the last line of the comment of a table whose retention was made
// longer: of what was stored before, rows may be gone.
const expiredBefore = "\n\nRows may have expired that were stored before "

// expired is until when the rows of a table may have been stored that expired under
// an earlier, shorter retention; zero when there was none. about is the rest of its comment.
func (db *DB) expired(ctx context.Context, table string) (about string, until time.Time, err error) {
	var comment string
	err = db.row(ctx, "read what has expired of "+table, "SELECT comment FROM system.tables WHERE concat(database, '.', name) = ?", []any{db.local(table)}, &comment)
	about, text, is := strings.Cut(comment, expiredBefore)
	if err == nil && is {
		until, err = time.Parse(time.RFC3339, text)
	}
	return about, until, err
}

// Kept is how long a row of records and what is counted of it are surely kept:
// a little less than their retention, since clocks differ.
func (db *DB) Kept(ctx context.Context) (time.Duration, error) {
	kept := time.Duration(math.MaxInt64)
	for _, table := range []string{"records", "counts_1m"} {
		days, err := db.days(ctx, table)
		if err != nil {
			return 0, err
		}
		if days > 0 {
			kept = min(kept, time.Duration(days)*24*time.Hour)
		}
		_, gone, err := db.expired(ctx, table)
		if err != nil {
			return 0, err
		}
		if !gone.IsZero() {
			kept = min(kept, time.Since(gone))
		}
	}
	return kept / 40 * 39, nil
}

// keptSince is the first day on which rows were stored that are surely kept, as ClickHouse
// takes a Date.
func (db *DB) keptSince(ctx context.Context) (string, error) {
	kept, err := db.Kept(ctx)
	return time.Unix(max(time.Now().Add(-kept).Unix(), -24*60*60), 0).UTC().AddDate(0, 0, 1).Format(time.DateOnly), err
}
