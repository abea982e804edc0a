package warehouse

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// Sum is the number of rows and the sum of their digests, modulo 2^64.
type Sum struct {
	Rows   uint64
	Digest uint64
}

// Sums returns what the table holds of the messages from first to last of a
// lane: run i is width messages from first+i*width on. Runs without rows are
// left out. Nothing is merged first: a row that is there twice counts twice.
func (db *DB) Sums(ctx context.Context, lane int, first, last, width uint64, d *Digest) (map[uint64]Sum, error) {
	sums := map[uint64]Sum{}
	return sums, db.each(ctx, "sum up rows", fmt.Sprintf(
		`SELECT toUInt64(intDiv(stream_seq - ?, ?)) AS run, count(), sum(%s) FROM %s.records
		WHERE lane = ? AND stream_seq BETWEEN ? AND ? GROUP BY run`, d.sql(), db.name),
		[]any{first, width, lane, first, last}, func(rows driver.Rows) error {
			var run uint64
			var s Sum
			if err := rows.Scan(&run, &s.Rows, &s.Digest); err != nil {
				return err
			}
			sums[run] = s
			return nil
		})
}

// errEnough ends a query early.
var errEnough = errors.New("enough")

// Row is a row as it is stored, by its place.
type Row struct {
	Seq    uint64
	Idx    uint32
	ID     string
	Digest uint64
}

// Rows gives the rows of the messages from first to last of a lane in the
// order of the stream, none merged.
func (db *DB) Rows(ctx context.Context, lane int, first, last uint64, d *Digest) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		err := db.each(ctx, "read rows", fmt.Sprintf(
			`SELECT stream_seq, stream_idx, id, %s FROM %s.records WHERE lane = ? AND stream_seq BETWEEN ? AND ?
			ORDER BY stream_seq, stream_idx SETTINGS max_bytes_before_external_sort = 1000000000`, d.sql(), db.name),
			[]any{lane, first, last}, func(rows driver.Rows) error {
				var r Row
				if err := rows.Scan(&r.Seq, &r.Idx, &r.ID, &r.Digest); err != nil {
					return err
				}
				if !yield(r, nil) {
					return errEnough
				}
				return nil
			})
		if err != nil && err != errEnough {
			yield(Row{}, err)
		}
	}
}

// Keys returns which sorting keys, by Digest.Key, rows with one of these ids
// have, wherever they came from.
func (db *DB) Keys(ctx context.Context, ids []string) (map[uint64]bool, error) {
	keys := map[uint64]bool{}
	ctx = clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{"max_query_size": 64 << 20}))
	return keys, db.each(ctx, "look for ids", fmt.Sprintf("SELECT DISTINCT %s FROM %s.records WHERE id IN (?)", digestSQL(sortingKey), db.name),
		[]any{ids}, func(rows driver.Rows) error {
			var key uint64
			err := rows.Scan(&key)
			keys[key] = true
			return err
		})
}

// Extent is how far the rows of a lane reach.
type Extent struct {
	Lane        int
	Rows        uint64
	First, Last uint64 // sequences
}

// Extents returns every lane the table has rows of.
func (db *DB) Extents(ctx context.Context) ([]Extent, error) {
	var all []Extent
	err := db.each(ctx, "find the lanes of the table", fmt.Sprintf(
		"SELECT lane, count(), min(stream_seq), max(stream_seq) FROM %s.records GROUP BY lane ORDER BY lane", db.name),
		nil, func(rows driver.Rows) error {
			var lane uint16
			var e Extent
			if err := rows.Scan(&lane, &e.Rows, &e.First, &e.Last); err != nil {
				return err
			}
			e.Lane = int(lane)
			all = append(all, e)
			return nil
		})
	return all, err
}

// Repeat is a place that more than one row has.
type Repeat struct {
	Row
	Rows uint64
}

// Repeats returns at most limit places before a message of a lane that more
// than one row has, and how many rows there are before it.
func (db *DB) Repeats(ctx context.Context, lane int, before uint64, limit int) (rows uint64, all []Repeat, err error) {
	err = db.row(ctx, "count rows", fmt.Sprintf("SELECT count() FROM %s.records WHERE lane = ? AND stream_seq < ?", db.name), []any{lane, before}, &rows)
	if err != nil {
		return 0, nil, err
	}
	err = db.each(ctx, "look for rows that are there twice", fmt.Sprintf(
		`SELECT stream_seq, stream_idx, any(id), count() AS n FROM %s.records WHERE lane = ? AND stream_seq < ?
		GROUP BY stream_seq, stream_idx HAVING n > 1 ORDER BY stream_seq, stream_idx LIMIT ?
		SETTINGS max_bytes_before_external_group_by = 1000000000`, db.name),
		[]any{lane, before, limit}, func(rows driver.Rows) error {
			var r Repeat
			err := rows.Scan(&r.Seq, &r.Idx, &r.ID, &r.Rows)
			all = append(all, r)
			return err
		})
	return rows, all, err
}

// kept is how long a row is surely kept: less than the retention of the tables,
// which remove what is older each at its own time.
const kept = 390 * 24 * time.Hour

// RowsPerDay counts the rows of records by the day of the record, none merged,
// without days of which rows may have expired.
func (db *DB) RowsPerDay(ctx context.Context) (map[string]int64, error) {
	return db.perDay(ctx, fmt.Sprintf(
		"SELECT toString(toDate(ts)) AS day, toInt64(count()) FROM %s.records GROUP BY day HAVING min(received_at) > ?", db.name))
}

// CountedPerDay is the same by the counters. Days without a row may be in it.
func (db *DB) CountedPerDay(ctx context.Context) (map[string]int64, error) {
	return db.perDay(ctx, fmt.Sprintf(
		"SELECT toString(toDate(minute)) AS day, sum(records) FROM %s.counts_1m GROUP BY day HAVING max(received_at) > ?", db.name))
}

func (db *DB) perDay(ctx context.Context, query string) (map[string]int64, error) {
	days := map[string]int64{}
	return days, db.each(ctx, "count by day", query, []any{time.Now().Add(-kept)}, func(rows driver.Rows) error {
		var day string
		var n int64
		err := rows.Scan(&day, &n)
		days[day] = n
		return err
	})
}

// each runs a query and calls f for every row of its answer.
func (db *DB) each(ctx context.Context, doing, query string, args []any, f func(driver.Rows) error) error {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	return db.eachUntil(ctx, doing, query, args, f)
}

// eachUntil is each with no other bound than that of ctx.
func (db *DB) eachUntil(ctx context.Context, doing, query string, args []any, f func(driver.Rows) error) error {
	rows, err := db.queries.Query(ctx, query, args...)
	if err != nil {
		return storeError(doing, err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return storeError(doing, err)
	}
	return nil
}
