package warehouse

import (
	"context"
	"fmt"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"go.opentelemetry.io/otel/trace"

	"sluice/pkg/record"
)

// Stored returns how many of the rows that the claim of the block names are in
// the table, by month: each month is a partition, and an insert may have reached
// one and not another. It reads the days of these rows only, and counts those of
// the same life of the lane only.
func (db *DB) Stored(ctx context.Context, b record.Block) (map[int]uint64, error) {
	months := map[int]uint64{}
	from, to := claimed(b)
	if from == to {
		return months, nil
	}
	where := ofClaim(b, from, to)
	err := db.each(db.shardwise(ctx), "count stored rows", fmt.Sprintf(
		"SELECT toYYYYMM(ts), count() FROM %s.records WHERE %s GROUP BY 1", db.name, where),
		nil, func(rows driver.Rows) error {
			var month uint32
			var n uint64
			err := rows.Scan(&month, &n)
			months[int(month)] += n
			return err
		})
	return months, err
}

// claimed are the rows that the claim of a block names.
func claimed(b record.Block) (from, to int) {
	if b.Claim.To == 0 {
		return b.Claim.From, b.Columns.Rows()
	}
	return b.Claim.From, b.Claim.To
}

// ofClaim finds the rows from to to-1 of a block. Nothing else of the block is
// between the first and the last of them in the stream, but rows of other months
// perhaps, which are not counted. They may be in another order.
func ofClaim(b record.Block, from, to int) conditions {
	c := b.Columns
	before := func(i, j int) bool {
		return c.StreamSeq[i] < c.StreamSeq[j] || c.StreamSeq[i] == c.StreamSeq[j] && c.StreamIdx[i] < c.StreamIdx[j]
	}
	first, last := from, from
	for row := from + 1; row < to; row++ {
		if before(row, first) {
			first = row
		}
		if before(last, row) {
			last = row
		}
	}
	var where conditions
	where.when(c, numbersOf(from, to))
	where.add("lane = %d AND incarnation = %d", b.Lane, c.Incarnation[from])
	where.add("stream_seq BETWEEN %d AND %d", c.StreamSeq[first], c.StreamSeq[last])
	where.add("(stream_seq, stream_idx) >= (%d, %d) AND (stream_seq, stream_idx) <= (%d, %d)",
		c.StreamSeq[first], c.StreamIdx[first], c.StreamSeq[last], c.StreamIdx[last])
	return where
}

// PartsSince returns how many parts flow.records has got since then, rather too
// many than too few. A part names the first and the last of the inserts that it
// was merged from, so the parts that are older tell where the count stood: at
// least at the highest number that one of them has. The targets of our
// materialized views get as many parts, or fewer.
func (db *DB) PartsSince(ctx context.Context, then time.Time) (uint64, error) {
	d := db.plain()
	// A single server numbers the inserts of a table, a replicated table those
	// of each partition.
	numbered, parts := "'all'", "system.parts"
	if d.replicated() {
		numbered = "partition_id"
	}
	if d.Cluster != "" {
		parts = fmt.Sprintf("clusterAllReplicas('%s', system.parts)", d.Cluster)
	}
	table := d.Table("records")
	var n uint64
	err := db.row(db.shardwise(ctx), "count the parts since a claim", fmt.Sprintf(`
		SELECT toUInt64(ifNull(max(n), 0)) FROM (
			SELECT hostName() AS host, sum(since) AS n FROM (
				SELECT hostName() AS host, %s AS numbered, toInt64(max(max_block_number)) - toInt64(maxIf(max_block_number, modification_time < ?)) AS since
				FROM %s WHERE database = ? AND table = ? GROUP BY host, numbered)
			GROUP BY host)`, numbered, parts),
		[]any{then.Add(-clockSkew), db.name, table[len(db.name)+1:]}, &n)
	return n, err
}

// clockSkew is how far the clock of ClickHouse may be behind that of an
// ingester.
const clockSkew = time.Minute

func (db *DB) row(ctx context.Context, doing, query string, args []any, dest ...any) error {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	if err := db.queries.QueryRow(traced(ctx), query, args...).Scan(dest...); err != nil {
		return storeError(doing, err)
	}
	return nil
}

// traced tells ClickHouse, which has spans of its own, the span of ctx.
func traced(ctx context.Context) context.Context {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return ctx
	}
	return clickhouse.Context(ctx, clickhouse.WithSpan(span))
}
