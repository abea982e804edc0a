// Package expiry says which stored days may have expired: all of them up to one day, the
// expiry line.
//
// Rows, counters, and the totals of a lane expire by their stored day alone. The line is
// the later of two days: the one that the retention of the tables lets expire by
// ClickHouse's clock, whether rows are merged away or not; and the one in the KV store,
// the latest that any earlier retention had let expire. It only moves forward, so that
// expired and missing never look alike.
package expiry

import (
	"context"

	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// Line is the expiry line, such as 2025-11-21: what was stored after it is kept. It is
// empty when nothing has expired.
func Line(ctx context.Context, s *stream.Stream, db *warehouse.DB) (string, error) {
	due, err := db.Due(ctx)
	if err != nil {
		return "", err
	}
	line, err := s.ExpiryLine(ctx)
	return max(line, due), err
}

// Retain sets how long rows of a table are kept, and before that moves the line to the
// last day that the retention so far, or the new one, has let expire.
func Retain(ctx context.Context, s *stream.Stream, db *warehouse.DB, r warehouse.Retention) error {
	if err := r.Check(); err != nil {
		return err
	}
	due, err := db.Due(ctx, r)
	if err != nil {
		return err
	}
	if err := s.MoveExpiryLine(ctx, due); err != nil {
		return err
	}
	// Moved. A crash here leaves days out of verify that are kept all the same.
	return db.Retain(ctx, r)
}

// Of is the line of an installation. It says what an ingester takes for expired.
type Of struct {
	Stream *stream.Stream
	DB     *warehouse.DB
}

// Line is the expiry line.
func (o Of) Line(ctx context.Context) (string, error) { return Line(ctx, o.Stream, o.DB) }
