package warehouse

import (
	"context"
	"fmt"

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
