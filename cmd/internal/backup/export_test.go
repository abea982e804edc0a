package backup

import (
	"context"

	"github.com/nats-io/nats.go"
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
