package warehouse

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/flow"
)

// Marks returns how far days of sources reach, by flow.sources, and how many
// rows of a life of a lane that table has heard of.
func (db *DB) Marks(ctx context.Context, lane int, incarnation uint64, days []flow.SourceDay) (flow.Marks, error) {
	ctx = db.shardwise(ctx)
	marks := flow.Marks{Last: map[flow.SourceDay]int64{}}
	err := db.each(ctx, "count the rows of the lane", fmt.Sprintf(
		"SELECT sum(rows) FROM %s.sources WHERE lane = ? AND incarnation = ?", db.name), []any{lane, incarnation}, func(rows driver.Rows) error {
		var n uint64
		err := rows.Scan(&n)
		marks.Rows += n
		return err
	})
	if err != nil || len(days) == 0 {
		return marks, err
	}
	asked, sources, dayNumbers := map[flow.SourceDay]bool{}, map[string]bool{}, map[int64]bool{}
	for _, day := range days {
		asked[day], sources[quote(day.Source)], dayNumbers[day.Day] = true, true, true
	}
	// Rather more days than were asked for than a list of triples, which takes
	// long to read.
	err = db.each(ctx, "read how far the sources reach", fmt.Sprintf(
		`SELECT source, partition_id, toInt64(toUInt16(day)), ifNull(max(last_position), 0), ifNull(toUnixTimestamp64Milli(max(last_ts)), 0)
		FROM %s.sources WHERE source IN (%s) AND day IN (%s) GROUP BY source, partition_id, day`,
		db.name, strings.Join(slices.Sorted(maps.Keys(sources)), ", "), strings.Join(dates(dayNumbers), ", ")),
		nil, func(rows driver.Rows) error {
			var day flow.SourceDay
			var position, ts int64
			if err := rows.Scan(&day.Source, &day.Partition, &day.Day, &position, &ts); err != nil {
				return err
			}
			if day.Partition == 0 {
				position = ts
			}
			if last, told := marks.Last[day]; asked[day] && (!told || position > last) {
				marks.Last[day] = position
			}
			return nil
		})
	return marks, err
}

// Lacking compares flow.sources with the stored rows of a life of a lane, all
// of them, and returns some days that reach less far there.
func (db *DB) Lacking(ctx context.Context, lane int, incarnation uint64) ([]flow.SourceDay, error) {
	ctx, cancel := context.WithTimeout(ctx, scanTime)
	defer cancel()
	var all []flow.SourceDay
	err := db.eachUntil(ctx, "compare flow.sources with flow.records", fmt.Sprintf(`
		SELECT r.source, r.p, toInt64(toUInt16(r.d)) FROM
			(SELECT source, if(identity = '', partition_id, 0) AS p, toDate(ts) AS d, max(if(identity = '', position, 0)) AS position, max(ts) AS last
			FROM %[1]s.records WHERE lane = ? AND incarnation = ? GROUP BY source, p, d) AS r
		LEFT JOIN
			(SELECT source, partition_id AS p, day AS d, sum(rows) AS n, ifNull(max(last_position), 0) AS position,
				ifNull(max(last_ts), fromUnixTimestamp64Milli(0, 'UTC')) AS last
			FROM %[1]s.sources GROUP BY source, p, d) AS s
		ON r.source = s.source AND r.p = s.p AND r.d = s.d
		WHERE s.n = 0 OR r.p > 0 AND r.position > s.position OR r.p = 0 AND r.last > s.last
		ORDER BY ALL LIMIT 100`, db.name),
		[]any{lane, incarnation}, func(rows driver.Rows) error {
			var day flow.SourceDay
			err := rows.Scan(&day.Source, &day.Partition, &day.Day)
			all = append(all, day)
			return err
		})
	return all, err
}

// scanTime bounds a question that reads all of flow.records, which is asked only when
// something is wrong, and a migration that copies a table.
const scanTime = 10 * time.Minute

// LastSeq returns the last message of a life of a lane that has a row in
// flow.records, 0 when there is none. A table that was truncated, or restored
// from a backup, does not reach as far as the position of the lane. It reads the
// days of that message only, as flow.sources tells them, unless it is not there.
func (db *DB) LastSeq(ctx context.Context, lane int, incarnation uint64) (uint64, error) {
	ctx = db.shardwise(ctx)
	args := []any{lane, incarnation}
	expected, err := db.greatest(ctx, "find the last message", fmt.Sprintf(
		"SELECT max(last_seq) FROM %s.sources WHERE lane = ? AND incarnation = ?", db.name), args...)
	if err != nil || expected == 0 {
		return 0, err
	}
	days := map[int64]bool{}
	err = db.each(ctx, "find the days of the last message", fmt.Sprintf(
		"SELECT DISTINCT toInt64(toUInt16(day)) FROM %s.sources WHERE lane = ? AND incarnation = ? AND last_seq = ?", db.name), []any{lane, incarnation, expected},
		func(rows driver.Rows) error {
			var day int64
			err := rows.Scan(&day)
			days[day] = true
			return err
		})
	if err != nil {
		return 0, err
	}
	found, err := db.greatest(ctx, "find the last stored message", fmt.Sprintf(
		"SELECT max(stream_seq) FROM %s.records WHERE lane = ? AND incarnation = ? AND stream_seq = ? AND toDate(ts) IN (%s)",
		db.name, strings.Join(dates(days), ", ")), lane, incarnation, expected)
	if err != nil || found == expected {
		return found, err
	}
	// The rows of that message may all be forgotten.
	forgotten, err := db.greatest(ctx, "find the last forgotten message", fmt.Sprintf(
		"SELECT max(stream_seq) FROM %s.forgotten WHERE lane = ? AND incarnation = ?", db.name), args...)
	if err != nil || forgotten == expected {
		return forgotten, err
	}
	ctx, cancel := context.WithTimeout(ctx, scanTime)
	defer cancel()
	found = forgotten
	err = db.eachUntil(ctx, "find the last stored message", fmt.Sprintf(
		"SELECT max(stream_seq) FROM %s.records WHERE lane = ? AND incarnation = ?", db.name), args, greater(&found))
	return found, err
}

// greatest asks for a number, of which each shard may have another.
func (db *DB) greatest(ctx context.Context, doing, query string, args ...any) (most uint64, err error) {
	err = db.each(ctx, doing, query, args, greater(&most))
	return most, err
}

func greater(most *uint64) func(driver.Rows) error {
	return func(rows driver.Rows) error {
		var n uint64
		err := rows.Scan(&n)
		*most = max(*most, n)
		return err
	}
}

// LastLife returns the greatest incarnation of a lane that a row has, and the
// last message of that life that has one, by flow.sources; zeros when there is
// none.
func (db *DB) LastLife(ctx context.Context, lane int) (incarnation, seq uint64, err error) {
	err = db.each(db.shardwise(ctx), "find the last life of the lane", fmt.Sprintf(
		"SELECT tupleElement(m, 1), tupleElement(m, 2) FROM (SELECT max((incarnation, last_seq)) AS m FROM %s.sources WHERE lane = ?)", db.name), []any{lane},
		func(rows driver.Rows) error {
			var life, last uint64
			err := rows.Scan(&life, &last)
			if life > incarnation || life == incarnation && last > seq {
				incarnation, seq = life, last
			}
			return err
		})
	return incarnation, seq, err
}
