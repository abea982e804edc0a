package warehouse

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/zeebo/xxh3"

	"sluice/pkg/warehouse/native"
)

// Sum is the number of rows and the sum of their digests, modulo 2^64.
type Sum struct {
	Rows   uint64
	Digest uint64
}

// Sums returns the rows of the messages from first to last of an incarnation of a lane: run i
// covers width messages from first+i*width. Runs without rows are omitted. Duplicates count
// twice, since nothing is merged first.
func (db *DB) Sums(ctx context.Context, lane int, incarnation, first, last, width uint64, d *native.Digest) (map[uint64]Sum, error) {
	sums := map[uint64]Sum{}
	return sums, db.each(ctx, "sum up rows", fmt.Sprintf(
		`SELECT toUInt64(intDiv(stream_seq - ?, ?)) AS run, count(), sum(%s) FROM %s.records
		WHERE lane = ? AND incarnation = ? AND stream_seq BETWEEN ? AND ? GROUP BY run`, d.SQL(), db.name),
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

// Row is a stored row with its place.
type Row struct {
	Seq    uint64
	Idx    uint32
	ID     string
	Digest uint64
}

// Rows iterates over the rows of the messages from first to last of an incarnation of a lane, in
// stream order, unmerged.
func (db *DB) Rows(ctx context.Context, lane int, incarnation, first, last uint64, d *native.Digest) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		err := db.each(ctx, "read rows", fmt.Sprintf(
			`SELECT stream_seq, stream_idx, id, %s FROM %s.records WHERE lane = ? AND incarnation = ? AND stream_seq BETWEEN ? AND ?
			ORDER BY stream_seq, stream_idx SETTINGS max_bytes_before_external_sort = 1000000000`, d.SQL(), db.name),
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

// Place is the place of a record within an incarnation of a lane.
type Place struct {
	Seq uint64
	Idx uint32
}

// Places are the places, in the messages from first to last, of rows that are identified by
// place.
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

// Extent is the range of rows of an incarnation of a lane.
type Extent struct {
	Lane        int
	Incarnation uint64
	Rows        uint64
	First, Last uint64 // sequences
}

// Extents returns every incarnation of a lane with rows in the table.
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

// storedAfter is a condition for rows stored after the expiry line, the last day whose rows may
// have expired; for all if it is empty.
func storedAfter(line string) string {
	if line == "" {
		return "1"
	}
	return "toDate(stored_at) > " + quote(line)
}

// RowsBefore counts the rows of messages before a sequence of an incarnation of a lane, stored
// after the expiry line.
func (db *DB) RowsBefore(ctx context.Context, lane int, incarnation, before uint64, line string) (rows uint64, err error) {
	return rows, db.row(ctx, "count rows", fmt.Sprintf("SELECT count() FROM %s.records WHERE lane = ? AND incarnation = ? AND stream_seq < ? AND %s", db.name, storedAfter(line)),
		[]any{lane, incarnation, before}, &rows)
}

// RowsByStoredDay counts rows and forgotten records of the messages up to a sequence of an
// incarnation of a lane, stored after the expiry line, by stored day.
func (db *DB) RowsByStoredDay(ctx context.Context, lane int, incarnation, last uint64, line string) (map[string]uint64, error) {
	days := map[string]uint64{}
	of := fmt.Sprintf("WHERE lane = ? AND incarnation = ? AND stream_seq <= ? AND %s GROUP BY day", storedAfter(line))
	return days, db.each(ctx, "count rows by stored day", fmt.Sprintf(
		`SELECT toString(day), sum(n) FROM (SELECT toDate(stored_at) AS day, count() AS n FROM %[1]s.records %[2]s
			UNION ALL SELECT toDate(stored_at) AS day, uniqExact(stream_seq, stream_idx) AS n FROM %[1]s.forgotten %[2]s) GROUP BY day`, db.name, of),
		[]any{lane, incarnation, last, lane, incarnation, last}, func(rows driver.Rows) error {
			var day string
			var n uint64
			err := rows.Scan(&day, &n)
			days[day] += n
			return err
		})
}

// Duplicate is a record with more than one row.
type Duplicate struct {
	Row                // the latest of them
	Lane        int    // of that row
	Incarnation uint64 // of that row
	Rows        uint64 // number of rows
	Places      uint64 // distinct places in lanes
}

// sortingColumns are the columns that identify a record.
const sortingColumns = "value_type, bpmn_process_id, process_instance_key, ts, source, partition_id, position, key, record_type, intent, own_id, identity"

// Duplicates finds records with more than one row stored after the expiry line: an expired record may be
// stored again. It first compares the number of rows of each day before and after merging; rows inserted
// meanwhile only cost another query.
func (db *DB) Duplicates(ctx context.Context, line string, found func(Duplicate)) error {
	var days []string
	err := db.each(ctx, "find duplicate records", fmt.Sprintf(
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
		err = db.each(ctx, "list duplicate records", fmt.Sprintf(
			`SELECT max((incarnation, stream_seq, stream_idx, lane)) AS last, any(id), count() AS n, uniqExact(lane, incarnation, stream_seq, stream_idx)
			FROM %s.records WHERE toDate(ts) = ? AND %s GROUP BY %s HAVING n > 1 ORDER BY last
			SETTINGS max_bytes_before_external_group_by = 1000000000`, db.name, storedAfter(line), sortingColumns), []any{day}, func(rows driver.Rows) error {
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

// RowsPerDay counts the unmerged rows of records, stored after the expiry line, by the day of the
// record.
func (db *DB) RowsPerDay(ctx context.Context, line string) (map[string]int64, error) {
	return db.perDay(ctx, fmt.Sprintf(
		"SELECT toString(toDate(ts)) AS day, toInt64(count()) FROM %s.records WHERE %s GROUP BY day", db.name, storedAfter(line)))
}

// CountedPerDay returns the same by the counters, perhaps with days without rows.
func (db *DB) CountedPerDay(ctx context.Context, line string) (map[string]int64, error) {
	return db.perDay(ctx, fmt.Sprintf(
		"SELECT toString(toDate(minute)) AS day, sum(records) FROM %s.counts_1m WHERE %s GROUP BY day", db.name, countedAfter(line)))
}

// countedAfter is storedAfter of counters.
func countedAfter(line string) string {
	if line == "" {
		return "1"
	}
	return "stored_day > " + quote(line)
}

func (db *DB) perDay(ctx context.Context, query string) (map[string]int64, error) {
	days := map[string]int64{}
	return days, db.each(ctx, "count by day", query, nil, func(rows driver.Rows) error {
		var day string
		var n int64
		err := rows.Scan(&day, &n)
		days[day] = n
		return err
	})
}

// Recount is the errors in the counters of a day at one moment.
type Recount struct {
	Day     string // YYYY-MM-DD
	Missing int64  // uncounted records
	Surplus int64  // counted records without a row

	cells []cell
}

// cell is a wrong row of flow.counts_1m.
type cell struct {
	source                        string
	minute                        time.Time
	tenant, valueType, recordType string
	intent, process               string
	version                       int64
	stored                        time.Time // the day
	records, counted              int64
}

// Right reports whether the counters are right.
func (r *Recount) Right() bool { return len(r.cells) == 0 }

// cellsOfDay selects the counters of a day that differ from its records; duplicates count once.
const cellsOfDay = `
SELECT source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version, stored_day,
    sum(r) AS records, sum(c) AS counted
FROM (
    SELECT source, toStartOfMinute(ts) AS minute, tenant_id, value_type, record_type, intent, bpmn_process_id, ifNull(r.version, 0) AS version, toDate(stored_at) AS stored_day,
        toInt64(count()) AS r, toInt64(0) AS c
    FROM %[1]s.records AS r FINAL WHERE toDate(ts) = ? AND %[2]s
    GROUP BY ALL
    UNION ALL
    SELECT source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version, stored_day,
        toInt64(0) AS r, toInt64(sum(records)) AS c
    FROM %[1]s.counts_1m WHERE toDate(minute) = ? AND %[2]s
    GROUP BY ALL
)
GROUP BY source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version, stored_day
HAVING records != counted
ORDER BY ALL`

// Recount compares the counters of a day with its records. The result is valid only while nothing
// is inserted. Days stored up to the expiry line are left out: their records may have expired, and
// a recount would remove them from the counters.
func (db *DB) Recount(ctx context.Context, day, line string) (*Recount, error) {
	r := &Recount{Day: day}
	return r, db.each(ctx, "compare the counters of a day with its records", fmt.Sprintf(cellsOfDay, db.name, countedAfter(line)), []any{day, day}, func(rows driver.Rows) error {
		var c cell
		if err := rows.Scan(&c.source, &c.minute, &c.tenant, &c.valueType, &c.recordType, &c.intent, &c.process, &c.version,
			&c.stored, &c.records, &c.counted); err != nil {
			return err
		}
		if diff := c.records - c.counted; diff > 0 {
			r.Missing += diff
		} else {
			r.Surplus -= diff
		}
		r.cells = append(r.cells, c)
		return nil
	})
}

// Fix inserts the missing and removes the surplus counts. Its token identifies the errors, so a
// repetition, after a crash or in another process, changes nothing. If the very same errors occur
// again later, times is one more than before.
func (db *DB) Fix(ctx context.Context, r *Recount, times int) error {
	if r.Right() {
		return nil
	}
	return db.insertAt(ctx, db.inserts, "counts_1m", r.Name()+":"+strconv.Itoa(times), db.cfg.InsertTimeout, r.columns())
}

// Name identifies the errors: equal names mean equal errors.
func (r *Recount) Name() string {
	h := xxh3.New()
	for _, c := range r.cells {
		_, _ = fmt.Fprintf(h, "%q %d %q %q %q %q %q %d %d %d %d\n", c.source, c.minute.Unix(), c.tenant, c.valueType, c.recordType, c.intent, c.process, c.version, c.stored.Unix(), c.records, c.counted)
	}
	sum := h.Sum128().Bytes()
	return fmt.Sprintf("recount:%s:%x", r.Day, sum)
}

// columns are the differences.
func (r *Recount) columns() proto.Input {
	source, tenant, valueType := new(proto.ColStr).LowCardinality(), new(proto.ColStr).LowCardinality(), new(proto.ColStr).LowCardinality()
	recordType, intent, process := new(proto.ColStr).LowCardinality(), new(proto.ColStr).LowCardinality(), new(proto.ColStr).LowCardinality()
	minute, stored := new(proto.ColDateTime), new(proto.ColDate)
	var version, records proto.ColInt64
	for _, c := range r.cells {
		source.Append(c.source)
		minute.Append(c.minute)
		tenant.Append(c.tenant)
		valueType.Append(c.valueType)
		recordType.Append(c.recordType)
		intent.Append(c.intent)
		process.Append(c.process)
		version.Append(c.version)
		records.Append(c.records - c.counted)
		stored.Append(c.stored)
	}
	return proto.Input{
		{Name: "source", Data: source},
		{Name: "minute", Data: minute},
		{Name: "tenant_id", Data: tenant},
		{Name: "value_type", Data: valueType},
		{Name: "record_type", Data: recordType},
		{Name: "intent", Data: intent},
		{Name: "bpmn_process_id", Data: process},
		{Name: "version", Data: version},
		{Name: "records", Data: records},
		{Name: "stored_day", Data: stored},
	}
}
