package warehouse

import (
	"context"
	"fmt"
	"time"

	"sluice/pkg/record"
)

// Stored returns how many of the rows that the claim of the block names are in
// the table.
func (db *DB) Stored(ctx context.Context, b record.Block) (uint64, error) {
	from, to := b.Claim.From, b.Claim.To
	if to == 0 {
		to = b.Columns.Rows()
	}
	if from == to {
		return 0, nil
	}
	c := b.Columns
	var n uint64
	err := db.row(ctx, "count stored rows", fmt.Sprintf(
		`SELECT count() FROM %s.records WHERE lane = ? AND stream_seq BETWEEN ? AND ?
		AND (stream_seq, stream_idx) >= (?, ?) AND (stream_seq, stream_idx) <= (?, ?)`, db.name),
		[]any{b.Lane, c.StreamSeq[from], c.StreamSeq[to-1], c.StreamSeq[from], c.StreamIdx[from], c.StreamSeq[to-1], c.StreamIdx[to-1]}, &n)
	return n, err
}

// LastSeq returns the last message of the lane that has a row in the table, 0
// when there is none. A table that was truncated, or restored from a backup,
// does not reach as far as the position of the lane.
func (db *DB) LastSeq(ctx context.Context, lane int) (uint64, error) {
	var seq uint64
	err := db.row(ctx, "find the last stored message", fmt.Sprintf(
		"SELECT max(stream_seq) FROM %s.records WHERE lane = ?", db.name), []any{lane}, &seq)
	return seq, err
}

func (db *DB) row(ctx context.Context, doing, query string, args []any, dest ...any) error {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	if err := db.queries.QueryRow(ctx, query, args...).Scan(dest...); err != nil {
		return storeError(doing, err)
	}
	return nil
}

// Count says what the table holds of one lane and one minute of arrival.
type Count struct {
	Lane     int
	Minute   time.Time // UTC, by received_at
	Rows     uint64    // as they are, duplicates included
	Distinct uint64    // different places in the stream; fewer than Rows when one is there twice
	First    uint64    // smallest stream sequence
	Last     uint64    // largest stream sequence
}

// Counts returns what the table holds of the messages from first to last of a
// lane, by minute of arrival, oldest first.
func (db *DB) Counts(ctx context.Context, lane int, first, last uint64) ([]Count, error) {
	ctx, cancel := context.WithTimeout(ctx, db.cfg.QueryTimeout)
	defer cancel()
	rows, err := db.queries.Query(ctx, fmt.Sprintf(
		`SELECT toStartOfMinute(received_at) AS minute, count(), uniqExact(stream_seq, stream_idx), min(stream_seq), max(stream_seq)
		FROM %s.records WHERE lane = ? AND stream_seq BETWEEN ? AND ? GROUP BY minute ORDER BY minute`, db.name), lane, first, last)
	if err != nil {
		return nil, storeError("count rows per minute", err)
	}
	defer rows.Close()
	var all []Count
	for rows.Next() {
		n := Count{Lane: lane}
		if err := rows.Scan(&n.Minute, &n.Rows, &n.Distinct, &n.First, &n.Last); err != nil {
			return nil, storeError("count rows per minute", err)
		}
		n.Minute = n.Minute.UTC()
		all = append(all, n)
	}
	if err := rows.Err(); err != nil {
		return nil, storeError("count rows per minute", err)
	}
	return all, nil
}
