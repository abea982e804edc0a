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

// Retention is how long the rows of a table are kept after they came in.
type Retention struct {
	Table string
	Days  int // 0 for ever
}

// received are the tables whose rows say when they came in, with the column
// that does. Of folds a row is made of many that came in at different times:
// to remove some of these would leave half of a thing, such as an instance
// that never ended.
var received = []struct {
	table, column string
	whole         int // 1 when rows go with the whole part they are in, and nothing is rewritten
}{
	{"records", "toDateTime(received_at)", 1},
	{"counts_1m", "received_at", 1},
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
	for _, t := range received {
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
	for _, t := range received {
		if t.table == r.Table {
			column, whole = t.column, t.whole
		}
	}
	switch {
	case column == "":
		return fmt.Errorf("%s has no retention: its rows do not say when they came in", r.Table)
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
		gone, err := db.expired(ctx, r.Table)
		if err != nil {
			return err
		}
		if until := time.Now().AddDate(0, 0, -now); until.After(gone) {
			if err := db.everywhere(ctx, alter+"MODIFY COMMENT "+quote(expiredBefore+until.UTC().Format(time.RFC3339))); err != nil {
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

// expiredBefore begins the comment of a table whose retention was made longer:
// of what came in before, rows may be gone.
const expiredBefore = "rows may have expired that came in before "

// expired is until when the rows of a table may have come in that expired under
// an earlier, shorter retention; zero when there was none.
func (db *DB) expired(ctx context.Context, table string) (time.Time, error) {
	var comment string
	err := db.row(ctx, "read what has expired of "+table, "SELECT comment FROM system.tables WHERE concat(database, '.', name) = ?", []any{db.local(table)}, &comment)
	if err != nil {
		return time.Time{}, err
	}
	text, is := strings.CutPrefix(comment, expiredBefore)
	if !is {
		return time.Time{}, nil
	}
	return time.Parse(time.RFC3339, text)
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
		gone, err := db.expired(ctx, table)
		if err != nil {
			return 0, err
		}
		if !gone.IsZero() {
			kept = min(kept, time.Since(gone))
		}
	}
	return kept / 40 * 39, nil
}
