package warehouse

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/zeebo/xxh3"
)

// Recount is what the counters of a day lack, or have too much, at one moment.
type Recount struct {
	Day     string // YYYY-MM-DD
	Missing int64  // records that are not counted
	Surplus int64  // counted, and not there

	cells []cell
}

// cell is a row of flow.counts_1m that is wrong.
type cell struct {
	source                        string
	minute                        time.Time
	tenant, valueType, recordType string
	intent, process               string
	version                       int64
	records, counted              int64
	received                      time.Time // the latest of either
}

// Right tells whether there is nothing to do.
func (r *Recount) Right() bool { return len(r.cells) == 0 }

// cellsOfDay are the counters of a day that differ from its records, each of
// which counts once however often it is there.
const cellsOfDay = `
SELECT source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version,
    sum(r) AS records, sum(c) AS counted, max(received) AS received_at
FROM (
    SELECT source, toStartOfMinute(ts) AS minute, tenant_id, value_type, record_type, intent, bpmn_process_id, ifNull(r.version, 0) AS version,
        toInt64(count()) AS r, toInt64(0) AS c, toDateTime(max(received_at), 'UTC') AS received
    FROM %[1]s.records AS r FINAL WHERE toDate(ts) = ?
    GROUP BY source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version
    UNION ALL
    SELECT source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version,
        toInt64(0) AS r, toInt64(sum(records)) AS c, max(received_at) AS received
    FROM %[1]s.counts_1m WHERE toDate(minute) = ?
    GROUP BY source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version
)
GROUP BY source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version
HAVING records != counted
ORDER BY source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version`

// ErrExpired is why a day is not counted again.
var ErrExpired = errors.New("records may have expired")

// Recount compares the counters of a day with its records. It tells the truth
// only while nothing is inserted.
//
// A day of which records may have expired is refused: to count it again would
// take them out of the counters too.
func (db *DB) Recount(ctx context.Context, day string) (*Recount, error) {
	var oldest *time.Time // nil when there is nothing
	err := db.row(ctx, "look for the oldest record of a day", fmt.Sprintf(
		`SELECT minOrNull(received) FROM (
			SELECT minOrNull(received_at) AS received FROM %[1]s.records WHERE toDate(ts) = ?
			UNION ALL SELECT minOrNull(received_at) AS received FROM %[1]s.counts_1m WHERE toDate(minute) = ?)`, db.name), []any{day, day}, &oldest)
	if err != nil {
		return nil, err
	}
	kept, err := db.Kept(ctx)
	if err != nil {
		return nil, err
	}
	if oldest != nil && time.Since(*oldest) > kept {
		return nil, fmt.Errorf("%w of %s: the counters of that day cannot be made again", ErrExpired, day)
	}
	r := &Recount{Day: day}
	return r, db.each(ctx, "compare the counters of a day with its records", fmt.Sprintf(cellsOfDay, db.name), []any{day, day}, func(rows driver.Rows) error {
		var c cell
		if err := rows.Scan(&c.source, &c.minute, &c.tenant, &c.valueType, &c.recordType, &c.intent, &c.process, &c.version,
			&c.records, &c.counted, &c.received); err != nil {
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

// Mend inserts what the counters lack, and takes out what they have too much.
// The token says what was wrong: to mend the same again, after a crash or from
// another process, changes nothing. When it is found to be wrong in the very
// same way after that, it was made so anew, and times is one more than before.
func (db *DB) Mend(ctx context.Context, r *Recount, times int) error {
	if r.Right() {
		return nil
	}
	return db.insert(ctx, "counts_1m", r.Name()+":"+strconv.Itoa(times), db.cfg.InsertTimeout, r.columns())
}

// Name tells what is wrong: the same name is the same fault.
func (r *Recount) Name() string {
	h := xxh3.New()
	for _, c := range r.cells {
		_, _ = fmt.Fprintf(h, "%q %d %q %q %q %q %q %d %d %d\n", c.source, c.minute.Unix(), c.tenant, c.valueType, c.recordType, c.intent, c.process, c.version, c.records, c.counted)
	}
	sum := h.Sum128().Bytes()
	return fmt.Sprintf("recount:%s:%x", r.Day, sum)
}

// folded is a column of a SimpleAggregateFunction, whose name holds commas and
// quotes that would be taken for a time zone.
type folded struct{ *proto.ColDateTime }

// Infer takes the type as it is.
func (folded) Infer(proto.ColumnType) error { return nil }

// columns are the differences.
func (r *Recount) columns() proto.Input {
	source, tenant, valueType := new(proto.ColStr).LowCardinality(), new(proto.ColStr).LowCardinality(), new(proto.ColStr).LowCardinality()
	recordType, intent, process := new(proto.ColStr).LowCardinality(), new(proto.ColStr).LowCardinality(), new(proto.ColStr).LowCardinality()
	minute, received := new(proto.ColDateTime), folded{new(proto.ColDateTime)}
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
		received.Append(c.received)
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
		{Name: "received_at", Data: received},
	}
}
