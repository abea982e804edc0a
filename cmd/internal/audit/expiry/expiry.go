// Package expiry computes the expiry line: the last stored day whose rows may have
// expired.
//
// Rows, counters, and the totals of a lane expire by their stored day alone. The line is
// the later of two days: the one due by the current retention and ClickHouse's clock,
// merged away or not; and the one in the KV store, the latest due under any earlier
// retention. It only moves forward, so expired rows are never mistaken for missing ones.
package expiry

import (
	"context"
	"time"

	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// Line is the expiry line, such as 2025-11-21: rows stored after it are kept. It is empty
// when nothing has expired.
func Line(ctx context.Context, s *stream.Stream, db *warehouse.DB) (string, error) {
	clock, err := db.Clock(ctx)
	if err != nil {
		return "", err
	}
	return LineAt(ctx, s, db, clock)
}

// LineAt is the line as of a time of ClickHouse's clock, if the retention has not changed since.
func LineAt(ctx context.Context, s *stream.Stream, db *warehouse.DB, clock time.Time) (string, error) {
	due, err := db.Due(ctx, clock)
	if err != nil {
		return "", err
	}
	line, err := s.ExpiryLine(ctx)
	return max(line, due), err
}

// Retain sets the retention of a table. Before that it moves the line to the last day due
// under the present or the new retention.
func Retain(ctx context.Context, s *stream.Stream, db *warehouse.DB, r warehouse.Retention) error {
	if err := r.Check(); err != nil {
		return err
	}
	clock, err := db.Clock(ctx)
	if err != nil {
		return err
	}
	due, err := db.Due(ctx, clock, r)
	if err != nil {
		return err
	}
	if err := s.MoveExpiryLine(ctx, due); err != nil {
		return err
	}
	// Moved. A crash here excludes days from verify that are still kept.
	return db.Retain(ctx, r)
}

// Of is the line of an installation, for its ingesters.
type Of struct {
	Stream *stream.Stream
	DB     *warehouse.DB
}

func (o Of) Line(ctx context.Context) (string, error) { return Line(ctx, o.Stream, o.DB) }
