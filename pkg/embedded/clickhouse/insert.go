package clickhouse

import (
	"context"
	"sync"
)

// pieceSize is how much data is handed to the engine at a time. It queues 16
// such pieces before append waits for it.
const pieceSize = 1 << 20

// insertion is an INSERT whose data is still coming. Until finish it has stored
// nothing, unless its data outgrew one block of the engine (see the package's
// comment); it must end with finish or cancel.
type insertion struct {
	conn   *conn
	stream uintptr
	end    sync.Once
}

// insert starts an INSERT: sql up to, but without, its FORMAT or VALUES.
func (c *conn) insert(sql, format string) (*insertion, error) {
	lib := c.engine.lib
	stream := call(lib.insert, *c.handle, sql+"\n", format) // The engine appends FORMAT; a comment must not swallow it.
	if text := lib.insertError(stream); text != "" {
		lib.insertFree(stream)
		return nil, parseException(text)
	}
	return &insertion{conn: c, stream: stream}, nil
}

// append hands data to the engine, which copies it. It reports false when the
// engine takes no more because the INSERT has failed; finish says why.
func (i *insertion) append(data []byte) bool {
	for len(data) > 0 {
		piece := data[:min(len(data), pieceSize)]
		if i.conn.engine.lib.insertAppend(i.stream, &piece[0], uintptr(len(piece))) != 0 {
			return false
		}
		data = data[len(piece):]
	}
	return true
}

// finish stores what was appended. When it returns nil the data is stored; when
// it returns an error some of it may be, as in any ClickHouse: repeat the INSERT
// with its deduplication token. It is killed when ctx ends.
func (i *insertion) finish(ctx context.Context) (done stats, err error) {
	i.end.Do(func() {
		defer i.conn.killWhenDone(ctx)()
		lib := i.conn.engine.lib
		result := lib.insertDone(i.stream)
		if err = i.conn.failure(result); err == nil {
			done.add(lib, result)
		}
		lib.destroyResult(result)
		lib.insertFree(i.stream)
	})
	return done, err
}

// cancel drops what was appended. After finish it does nothing.
func (i *insertion) cancel() {
	i.end.Do(func() {
		lib := i.conn.engine.lib
		lib.insertCancel(i.stream)
		lib.insertFree(i.stream)
	})
}
