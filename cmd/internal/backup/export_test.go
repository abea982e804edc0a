package backup

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/pkg/warehouse"
)

// Snapshot and RestoreStream copy a stream from one server to another through f.
func Snapshot(ctx context.Context, nc *nats.Conn, f *File, folder string) error {
	b := &backup{cfg: Config{Folder: folder}.withDefaults(), nc: nc, m: &Manifest{}}
	if err := b.copyStream(ctx, f.Stream); err != nil {
		return err
	}
	*f = b.m.Files[0]
	return nil
}

// RestoreStream is the other half.
func (f *File) RestoreStream(ctx context.Context, nc *nats.Conn, folder string) error {
	return f.restore(ctx, nc, folder, 0)
}

// Sent is a record that came in.
type Sent struct {
	Partition, Position int64
	At                  time.Time
}

// Join is what records behind the cut add to what tables hold of one source.
func Join(source string, sent []Sent, stored []warehouse.Reach) []warehouse.Reach {
	all := tails{}
	for _, s := range sent {
		all.add(sourcePart{source, s.Partition}, s.Position, s.At)
	}
	return all.join(stored)
}
