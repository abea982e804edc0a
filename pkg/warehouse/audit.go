package warehouse

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// Sum is the number of rows and the sum of their digests, modulo 2^64.
type Sum struct {
	Rows   uint64
	Digest uint64
}

// Sums returns what the table holds of the messages from first to last of a
// life of a lane: run i is width messages from first+i*width on. Runs without rows are
// left out. Nothing is merged first: a row that is there twice counts twice.
func (db *DB) Sums(ctx context.Context, lane int, incarnation, first, last, width uint64, d *Digest) (map[uint64]Sum, error) {
	sums := map[uint64]Sum{}
	return sums, db.each(ctx, "sum up rows", fmt.Sprintf(
		`SELECT toUInt64(intDiv(stream_seq - ?, ?)) AS run, count(), sum(%s) FROM %s.records
		WHERE lane = ? AND incarnation = ? AND stream_seq BETWEEN ? AND ? GROUP BY run`, d.sql(), db.name),
		[]any{first, width, lane, incarnation, first, last}, func(rows driver.Rows) error {
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

// Rows gives the rows of the messages from first to last of a life of a lane in
// the order of the stream, none merged.
func (db *DB) Rows(ctx context.Context, lane int, incarnation, first, last uint64, d *Digest) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		err := db.each(ctx, "read rows", fmt.Sprintf(
			`SELECT stream_seq, stream_idx, id, %s FROM %s.records WHERE lane = ? AND incarnation = ? AND stream_seq BETWEEN ? AND ?
			ORDER BY stream_seq, stream_idx SETTINGS max_bytes_before_external_sort = 1000000000`, d.sql(), db.name),
			[]any{lane, incarnation, first, last}, func(rows driver.Rows) error {
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

// Place is where a record came in, in a life of a lane.
type Place struct {
	Seq uint64
	Idx uint32
}

// Places are those of the messages from first to last whose records have rows
// though nothing but their place tells them from others.
func (db *DB) Places(ctx context.Context, lane int, incarnation, first, last uint64) (map[Place]bool, error) {
	places := map[Place]bool{}
	err := db.each(ctx, "read places", fmt.Sprintf(
		`SELECT stream_seq, stream_idx FROM %s.records
		WHERE lane = ? AND incarnation = ? AND stream_seq BETWEEN ? AND ? AND startsWith(identity, ?)`, db.name),
		[]any{lane, incarnation, first, last, fmt.Sprintf("%d.", lane)}, func(rows driver.Rows) error {
			var p Place
			if err := rows.Scan(&p.Seq, &p.Idx); err != nil {
				return err
			}
			places[p] = true
			return nil
		})
	return places, err
}

// Extent is how far the rows of a life of a lane reach.
type Extent struct {
	Lane        int
	Incarnation uint64
	Rows        uint64
	First, Last uint64 // sequences
}

// Extents returns every life of a lane that the table has rows of.
func (db *DB) Extents(ctx context.Context) ([]Extent, error) {
	var all []Extent
	err := db.each(ctx, "find the lanes of the table", fmt.Sprintf(
		"SELECT lane, incarnation, count(), min(stream_seq), max(stream_seq) FROM %s.records GROUP BY lane, incarnation ORDER BY lane, incarnation", db.name),
		nil, func(rows driver.Rows) error {
			var lane uint16
			var e Extent
			if err := rows.Scan(&lane, &e.Incarnation, &e.Rows, &e.First, &e.Last); err != nil {
				return err
			}
			e.Lane = int(lane)
			all = append(all, e)
			return nil
		})
	return all, err
}

// RowsBefore counts the rows of the messages before one of a life of a lane.
func (db *DB) RowsBefore(ctx context.Context, lane int, incarnation, before uint64) (rows uint64, err error) {
	return rows, db.row(ctx, "count rows", fmt.Sprintf("SELECT count() FROM %s.records WHERE lane = ? AND incarnation = ? AND stream_seq < ?", db.name),
		[]any{lane, incarnation, before}, &rows)
}

// Duplicate is a record that more than one row has.
type Duplicate struct {
	Row                // the latest of them
	Lane        int    // of that row
	Incarnation uint64 // of that row
	Rows        uint64 // how many there are
	Places      uint64 // in the lanes that they came from
}

// sortingColumns are those by which two rows are the same record.
const sortingColumns = "value_type, bpmn_process_id, process_instance_key, ts, source, partition_id, position, key, record_type, intent, own_id, identity"

// Duplicates gives records that more than one row has. Days are compared by
// their number of rows first, with and without those that the next merge
// removes; what is inserted meanwhile costs a second look, and nothing else.
func (db *DB) Duplicates(ctx context.Context, found func(Duplicate)) error {
	var days []string
	err := db.each(ctx, "look for records that are there twice", fmt.Sprintf(
		`SELECT toString(day) FROM (
			SELECT toDate(ts) AS day, toInt64(count()) AS n FROM %[1]s.records GROUP BY day
			UNION ALL SELECT toDate(ts) AS day, -toInt64(count()) AS n FROM %[1]s.records FINAL GROUP BY day)
		GROUP BY day HAVING sum(n) != 0 ORDER BY day`, db.name), nil, func(rows driver.Rows) error {
		var day string
		err := rows.Scan(&day)
		days = append(days, day)
		return err
	})
	for _, day := range days {
		if err != nil {
			break
		}
		err = db.each(ctx, "name records that are there twice", fmt.Sprintf(
			`SELECT max((incarnation, stream_seq, stream_idx, lane)) AS last, any(id), count() AS n, uniqExact(lane, incarnation, stream_seq, stream_idx)
			FROM %s.records WHERE toDate(ts) = ? GROUP BY %s HAVING n > 1 ORDER BY last
			SETTINGS max_bytes_before_external_group_by = 1000000000`, db.name, sortingColumns), []any{day}, func(rows driver.Rows) error {
			var d Duplicate
			var last []any
			if err := rows.Scan(&last, &d.ID, &d.Rows, &d.Places); err != nil {
				return err
			}
			d.Incarnation, d.Seq, d.Idx, d.Lane = last[0].(uint64), last[1].(uint64), last[2].(uint32), int(last[3].(uint16))
			found(d)
			return nil
		})
	}
	return err
}

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
	kept, err := db.Kept(ctx)
	if err != nil {
		return nil, err
	}
	days := map[string]int64{}
	return days, db.each(ctx, "count by day", query, []any{time.Unix(max(time.Now().Add(-kept).Unix(), 0), 0)}, func(rows driver.Rows) error {
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
	rows, err := db.queries.Query(traced(ctx), query, args...)
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
