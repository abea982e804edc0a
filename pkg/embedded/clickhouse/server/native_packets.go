package server

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/ClickHouse/ch-go/compress"
	"github.com/ClickHouse/ch-go/proto"

	"sluice/pkg/embedded/clickhouse/library"
)

// readBlock reads the rest of a Data packet.
func (c *client) readBlock() (read block, err error) {
	defer func() { c.broken = c.broken || err != nil }()
	table, err := c.in.text(maxText)
	if err != nil {
		return block{}, err
	}
	if read, err = c.blocks.read(); err != nil {
		return block{}, err
	}
	read.table = table
	if c.blocks.src == c.frames && c.frames.rest() > 0 {
		return block{}, library.Exceptionf("INCORRECT_DATA", "%d bytes follow a block in its frame", c.frames.rest())
	}
	return read, nil
}

// exception sends an exception.
func (c *client) exception(err *library.Exception) {
	proto.ServerCodeException.Encode(&c.out)
	answer := proto.Exception{Code: proto.Error(err.Code), Name: "DB::Exception", Message: err.Message}
	answer.EncodeAware(&c.out, c.revision)
}

// flush sends the buffered packets. A client that does not read blocks only its own
// statement.
func (c *client) flush() error {
	_, err := c.socket.Write(c.out.Buf)
	c.out.Reset()
	return err
}

// data sends a block of rows in FORMAT Native.
func (c *client) data(q query, body []byte) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	proto.ServerCodeData.Encode(&c.out)
	c.out.PutString("") // table name
	if q.compressed {
		packed := &frameWriter{to: c, packer: c.packer}
		_, err := packed.Write(noBlockInfo)
		if err == nil {
			_, err = packed.Write(body)
		}
		return err
	}
	c.out.Buf = append(c.out.Buf, noBlockInfo...)
	if err := c.flush(); err != nil {
		return err
	}
	_, err := c.socket.Write(body)
	return err
}

// Write sends bytes after the buffered ones.
func (c *client) Write(b []byte) (int, error) {
	c.out.Buf = append(c.out.Buf, b...)
	return len(b), c.flush()
}

// header sends a block of these columns without rows.
func (c *client) header(q query, columns []column) error {
	var body proto.Buffer
	body.PutInt(len(columns))
	body.PutInt(0)
	for _, column := range columns {
		body.PutString(column.name)
		body.PutString(column.typ)
		if proto.FeatureCustomSerialization.In(c.revision) {
			body.PutBool(false)
		}
	}
	return c.data(q, body.Buf)
}

// eventsInInsert is the revision from which clients expect profile events after each
// inserted block, and at the end.
const eventsInInsert proto.Feature = 54456

// profileEvents sends an empty block of profile events.
func (c *client) profileEvents() error {
	if !eventsInInsert.In(c.revision) {
		return nil
	}
	c.out.PutByte(byte(proto.ServerProfileEvents))
	c.out.PutString("") // table name
	c.out.Buf = append(c.out.Buf, noBlockInfo...)
	c.out.PutInt(0) // columns
	c.out.PutInt(0) // rows
	return c.flush()
}

// compression sets up both directions for a statement.
func (c *client) compression(q query) {
	c.blocks.src = c.in.Reader
	if !q.compressed {
		return
	}
	if c.frames == nil {
		c.frames = &frames{src: c.in.Reader}
	}
	c.blocks.src = c.frames
	method := compress.LZ4
	for _, s := range q.settings {
		if s.name == "network_compression_method" {
			switch s.value {
			case "ZSTD", "zstd":
				method = compress.ZSTD
			case "NONE", "none":
				method = compress.None
			}
		}
	}
	if c.packer == nil || c.packing != method {
		c.packer, c.packing = compress.NewWriter(compress.LevelZero, method), method
	}
}

var errDisconnected = fmt.Errorf("the client disconnected: %w", io.ErrUnexpectedEOF)

// The library reports no progress of a statement, but system.processes does. A statement
// that takes longer than a moment reports it, at growing intervals.
const (
	firstProgress = 300 * time.Millisecond
	restProgress  = 2 * time.Second
)

// sendProgress sends the progress of the statement until stop is called, which returns the
// progress sent.
func (c *client) sendProgress(ctx context.Context) (stop func() library.Progress) {
	ctx, cancel := context.WithCancel(ctx)
	result := make(chan library.Progress, 1)
	go func() {
		var sent library.Progress
		defer func() { result <- sent }()
		for wait := firstProgress; ; wait = min(2*wait, restProgress) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			now, ok := c.server.engine.Progress(c.session.conn.ID)
			if !ok || now.Rows <= sent.Rows {
				continue
			}
			more := proto.Progress{Rows: now.Rows - sent.Rows, Bytes: now.Bytes - min(now.Bytes, sent.Bytes), ElapsedNs: uint64(time.Since(c.begun))}
			if now.Total > sent.Total {
				more.TotalRows = now.Total - sent.Total
			}
			if err := c.progress(more); err != nil {
				return // the statement notices the disconnect itself
			}
			sent = library.Progress{Rows: now.Rows, Bytes: max(now.Bytes, sent.Bytes), Total: max(now.Total, sent.Total)}
		}
	}()
	return func() library.Progress { cancel(); return <-result }
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
