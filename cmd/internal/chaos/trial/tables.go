package trial

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/load"
)

// tables is what is stored, asked for past the links.
type tables struct{ db driver.Conn }

func openTables(addr string) (*tables, error) {
	db, err := clickhouse.Open(&clickhouse.Options{Addr: []string{addr}, ReadTimeout: 10 * time.Minute})
	return &tables{db}, err
}

func (t *tables) close() { _ = t.db.Close() } // nothing was written

// runsOfPartition counts every record of a partition, without FINAL, and joins
// those that follow each other and are stored equally often.
const runsOfPartition = `
SELECT min(p) AS first, max(p) AS last, n
FROM (
	SELECT p, n, p - rowNumberInAllBlocks() AS start
	FROM (SELECT position AS p, count() AS n FROM flow.records WHERE partition_id = ? GROUP BY p ORDER BY n, p)
)
GROUP BY start, n
SETTINGS max_threads = 1`

// records gives every record that is stored.
func (t *tables) records(ctx context.Context) ([]Stretch, error) {
	var odd uint64
	if err := t.db.QueryRow(ctx, `SELECT count() FROM flow.records WHERE id != concat(toString(partition_id), '-', toString(position))`).Scan(&odd); err != nil {
		return nil, fmt.Errorf("look for odd ids: %w", err)
	}
	if odd > 0 {
		return nil, fmt.Errorf("%d records have an id that is not their partition and position", odd)
	}
	partitions, err := t.partitions(ctx)
	if err != nil {
		return nil, err
	}
	var runs []Stretch
	for _, partition := range partitions {
		rows, err := t.db.Query(ctx, runsOfPartition, partition)
		if err != nil {
			return nil, fmt.Errorf("count the records of partition %d: %w", partition, err)
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

func (t *tables) partitions(ctx context.Context) ([]int64, error) {
	var all []int64
	err := t.db.QueryRow(ctx, `SELECT groupUniqArray(partition_id) FROM flow.records`).Scan(&all)
	return all, err
}

// counters compares flow.counts_1m with flow.records, minute by minute. A
// record that was inserted twice stays in the counters even when the table has
// merged its two rows into one.
const counters = `
SELECT sum(counted), sumIf(counted - rows, counted > rows), sumIf(rows - counted, rows > counted)
FROM (
	SELECT minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version, toInt64(sum(r)) AS rows, toInt64(sum(c)) AS counted
	FROM (
		SELECT toStartOfMinute(ts) AS minute, tenant_id, value_type, record_type, intent, bpmn_process_id, ifNull(version, 0) AS version, count() AS r, 0 AS c
		FROM flow.records GROUP BY ALL
		UNION ALL
		SELECT minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version, 0 AS r, sum(records) AS c
		FROM flow.counts_1m GROUP BY ALL
	)
	GROUP BY ALL
)`

// counters gives what the counters sum up to, and by how much they are above
// and below the records.
func (t *tables) counters(ctx context.Context) (sum, above, below int64, err error) {
	if err := t.db.QueryRow(ctx, counters).Scan(&sum, &above, &below); err != nil {
		return 0, 0, 0, fmt.Errorf("compare the counters: %w", err)
	}
	return sum, above, below, nil
}

// trace tells where the rows of some records came from.
func (t *tables) trace(ctx context.Context, ranges []load.Range) (string, error) {
	var b strings.Builder
	for _, r := range ranges[:min(len(ranges), 5)] {
		rows, err := t.db.Query(ctx, `SELECT id || ' lane ' || toString(lane) || ' message ' || toString(stream_seq) || ' record ' || toString(stream_idx)
			|| ' received ' || toString(received_at) || ' part ' || _part FROM flow.records
			WHERE partition_id = ? AND position BETWEEN ? AND ? ORDER BY position LIMIT 10`, r.Partition, r.First, r.Last)
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
