package clickhouse

import (
	"context"
	"fmt"
	"time"

	"github.com/ClickHouse/ch-go/proto"
)

// The library says nothing of a statement while it runs. system.processes does:
// a client hears of a statement that takes longer than a moment, less and less
// often.
const (
	firstProgress = 300 * time.Millisecond
	restProgress  = 2 * time.Second
)

// progress is what a statement has read so far.
type progress struct{ rows, bytes, total uint64 }

// progressOf asks for what runs on the connection with this id. ok is false when
// nothing does. It is not to be cancelled: what cancels is the same connection.
func (e *engine) progressOf(id string) (p progress, ok bool) {
	e.controlMu.Lock()
	defer e.controlMu.Unlock()
	var out []byte
	_, err := e.control.run(context.Background(), "SELECT read_rows, read_bytes, total_rows_approx FROM system.processes WHERE Settings['"+marker+"'] = '"+id+"'",
		"TabSeparated", func(chunk []byte) error { out = append(out, chunk...); return nil })
	if err == nil {
		_, err = fmt.Sscan(string(out), &p.rows, &p.bytes, &p.total)
	}
	return p, err == nil
}

// tellProgress tells the client how far its statement is, until the function it
// returns is called, which returns what was told.
func (c *client) tellProgress(ctx context.Context) (stop func() progress) {
	ctx, cancel := context.WithCancel(ctx)
	result := make(chan progress, 1)
	go func() {
		var told progress
		defer func() { result <- told }()
		for wait := firstProgress; ; wait = min(2*wait, restProgress) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			now, ok := c.server.engine.progressOf(c.session.conn.id)
			if !ok || now.rows <= told.rows {
				continue
			}
			more := proto.Progress{Rows: now.rows - told.rows, Bytes: now.bytes - min(now.bytes, told.bytes), ElapsedNs: uint64(time.Since(c.begun))}
			if now.total > told.total {
				more.TotalRows = now.total - told.total
			}
			if err := c.progress(more); err != nil {
				return // The statement itself finds out that the client is gone.
			}
			told = progress{now.rows, max(now.bytes, told.bytes), max(now.total, told.total)}
		}
	}()
	return func() progress { cancel(); return <-result }
}

// progress sends a packet of its own between those of the result.
func (c *client) progress(more proto.Progress) error {
	var packet proto.Buffer
	proto.ServerCodeProgress.Encode(&packet)
	more.EncodeAware(&packet, c.revision)
	c.sending.Lock()
	defer c.sending.Unlock()
	_, err := c.socket.Write(packet.Buf)
	return err
}
