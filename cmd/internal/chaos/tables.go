package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/load"
)

// tables is what is stored, asked for past the links.
type tables struct{ db driver.Conn }

func openTables(addr, database string) (*tables, error) {
	db, err := clickhouse.Open(&clickhouse.Options{
		Addr: []string{addr}, Auth: clickhouse.Auth{Database: database}, ReadTimeout: 10 * time.Minute,
	})
	return &tables{db}, err
}

func (t *tables) close() { _ = t.db.Close() } // nothing was written

// sources are those that have rows.
func (t *tables) sources(ctx context.Context) ([]string, error) {
	var all []string
	err := t.db.QueryRow(ctx, `SELECT arraySort(groupUniqArray(source)) FROM records`).Scan(&all)
	return all, err
}

// oddRows are rows whose id is not a partition and a position, or other ones
// than those of its own columns.
const oddRows = `
SELECT count() FROM records
WHERE source = ? AND (NOT match(id, '^[1-9][0-9]*-[1-9][0-9]*$') OR partition_id > 0 AND id != concat(toString(partition_id), '-', toString(position)))`

// runsOfPartition counts every record of a partition, without FINAL, and joins
// those that follow each other and are stored equally often.
const runsOfPartition = `
SELECT min(p) AS first, max(p) AS last, n
FROM (
	SELECT p, n, p - rowNumberInAllBlocks() AS start
	FROM (
		SELECT toInt64(splitByChar('-', id)[2]) AS p, count() AS n
		FROM records WHERE source = ? AND startsWith(id, ?) GROUP BY p ORDER BY n, p
	)
)
GROUP BY start, n
SETTINGS max_threads = 1`

// records gives every record of a source that is stored.
func (t *tables) records(ctx context.Context, source string) ([]Stretch, error) {
	var odd uint64
	if err := t.db.QueryRow(ctx, oddRows, source).Scan(&odd); err != nil {
		return nil, fmt.Errorf("look for odd ids: %w", err)
	}
	if odd > 0 {
		return nil, fmt.Errorf("%d records of %s have an id that is not their partition and position", odd, source)
	}
	var partitions []int64
	if err := t.db.QueryRow(ctx, `SELECT groupUniqArray(toInt64(splitByChar('-', id)[1])) FROM records WHERE source = ?`, source).Scan(&partitions); err != nil {
		return nil, err
	}
	var runs []Stretch
	for _, partition := range partitions {
		rows, err := t.db.Query(ctx, runsOfPartition, source, fmt.Sprintf("%d-", partition))
		if err != nil {
			return nil, fmt.Errorf("count the records of partition %d of %s: %w", partition, source, err)
		}
		for rows.Next() {
			var times uint64
			r := Stretch{Range: load.Range{Partition: partition}}
			if err := rows.Scan(&r.First, &r.Last, &times); err != nil {
				return nil, err
			}
			r.Times = int64(times)
			runs = append(runs, r)
		}
		if err := rows.Err(); err != nil {
			return nil, err
		}
	}
	return runs, nil
}

// marked counts the records without identity by their mark.
func (t *tables) marked(ctx context.Context, source string) (map[string]int64, error) {
	rows, err := t.db.Query(ctx, `SELECT process_instance_key, toInt64(count()) FROM records WHERE source = ? GROUP BY process_instance_key`, source)
	if err != nil {
		return nil, err
	}
	marked := map[string]int64{}
	for rows.Next() {
		var mark string
		var n int64
		if err := rows.Scan(&mark, &n); err != nil {
			return nil, err
		}
		marked[mark] = n
	}
	return marked, rows.Err()
}

// compare compares what is stored of every source with what it knows.
func (t *tables) compare(ctx context.Context, all *truth, j *journal) (Findings, error) {
	var f Findings
	names, err := t.sources(ctx)
	if err != nil {
		return f, err
	}
	for source := range all.sources {
		if !slices.Contains(names, source) {
			names = append(names, source)
		}
	}
	for _, source := range names {
		if source == anonymousSource {
			continue
		}
		stored, err := t.records(ctx, source)
		if err != nil {
			return f, err
		}
		p := all.sources[source] // of an unknown source nothing was sent
		one := Compare(p.acked, p.sent, stored)
		f.add(source, one)
		trace, err := t.trace(ctx, source, one.DoubledAt)
		if err != nil {
			return f, err
		}
		if trace != "" {
			j.note("%s", trace)
		}
	}
	marked, err := t.marked(ctx, anonymousSource)
	if err == nil {
		f.add(anonymousSource, all.anonymous.compare(marked))
	}
	return f, err
}

// trace tells where the rows of some records came from.
func (t *tables) trace(ctx context.Context, source string, ranges []load.Range) (string, error) {
	var b strings.Builder
	for _, r := range ranges[:min(len(ranges), 5)] {
		var ids []string
		for p := r.First; p <= r.Last && len(ids) < 10; p++ {
			ids = append(ids, fmt.Sprintf("%d-%d", r.Partition, p))
		}
		rows, err := t.db.Query(ctx, `SELECT source || ' ' || id || ' lane ' || toString(lane) || ' message ' || toString(stream_seq)
			|| ' received ' || toString(received_at) || ' part ' || _part FROM records
			WHERE source = ? AND id IN (?) ORDER BY id, stream_seq`, source, ids)
		if err != nil {
			return "", err
		}
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				return "", err
			}
			fmt.Fprintln(&b, line)
		}
		if err := rows.Err(); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}
