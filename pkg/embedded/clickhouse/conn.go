package clickhouse

import (
	"context"
	"runtime"
	"strings"
	"time"
	"unsafe"
)

// conn is one connection of the engine: a session with a current database,
// settings and temporary tables of its own. It runs one statement at a time.
type conn struct {
	engine *engine
	handle *uintptr // chdb_connection*
	id     string   // its marker, by which KILL QUERY finds what it runs
}

func (c *conn) disconnect() { c.engine.lib.closeConn(c.handle) }

// stats is what a statement has done. The engine counts what it reads from tables
// while a result is streamed only now and then, so readRows and readBytes may
// then be too low.
type stats struct {
	resultRows, resultBytes   uint64
	readRows, readBytes       uint64
	writtenRows, writtenBytes uint64
	blocks                    uint64

	told progress // of what was read, to the client, before the end
}

func (s *stats) add(lib *library, result uintptr) {
	s.resultRows += lib.rowsRead(result)
	s.resultBytes += lib.bytesRead(result)
	s.readRows += lib.storageRows(result)
	s.readBytes += lib.storageBytes(result)
	s.writtenRows += lib.rowsWritten(result)
	s.writtenBytes += lib.bytesWritten(result)
}

// sink takes a piece of a result, which is only valid until it returns. Its
// error ends the statement.
type sink func(chunk []byte) error

// run runs a statement and hands its whole result, printed in format, to out in
// one piece. It is killed when ctx ends.
func (c *conn) run(ctx context.Context, sql, format string, out sink) (stats, error) {
	defer c.killWhenDone(ctx)()
	lib := c.engine.lib
	result := call(lib.query, *c.handle, sql, format)
	defer lib.destroyResult(result)
	var done stats
	if err := c.failure(result); err != nil {
		return done, err
	}
	done.add(lib, result)
	if chunk := c.bytes(result); len(chunk) > 0 && out != nil {
		return done, out(chunk)
	}
	return done, nil
}

// notStreamable begins the engine's refusal to stream anything but a SELECT.
const notStreamable = "DB::Exception: Streaming query is not supported"

func isNotStreamable(err error) bool {
	exception, ok := err.(*Exception)
	return ok && exception.Name() == "BAD_ARGUMENTS" && strings.HasPrefix(exception.Message, notStreamable)
}

// stream runs a SELECT and hands its result to out block by block, each printed
// in format as a document of its own. It is killed when ctx ends. A statement
// that is no SELECT is refused before it does anything: isNotStreamable.
func (c *conn) stream(ctx context.Context, sql, format string, out sink) (stats, error) {
	defer c.killWhenDone(ctx)()
	lib := c.engine.lib
	var done stats
	query := call(lib.streamQuery, *c.handle, sql, format)
	defer lib.destroyResult(query)
	if err := c.failure(query); err != nil {
		return done, err
	}
	for {
		more, err := c.fetch(query, &done, out)
		if err != nil {
			lib.streamCancel(*c.handle, query) // Nothing, if the engine itself ended it.
			return done, err
		}
		if !more {
			return done, nil
		}
	}
}

func (c *conn) fetch(query uintptr, done *stats, out sink) (more bool, err error) {
	lib := c.engine.lib
	result := lib.streamFetch(*c.handle, query)
	defer lib.destroyResult(result)
	if err := c.failure(result); err != nil {
		return false, err
	}
	done.add(lib, result)
	chunk := c.bytes(result)
	if len(chunk) == 0 {
		return false, nil
	}
	done.blocks++
	return true, out(chunk)
}

// killWhenDone kills what runs on c once ctx ends, until the function it returns
// is called; after that it touches nothing any more.
func (c *conn) killWhenDone(ctx context.Context) (stop func()) {
	over, stopped := make(chan struct{}), make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(stopped)
		for { // Again, because a statement that is only about to start is not found yet.
			_ = c.engine.kill(c.id) // Its own failure leaves the statement to be killed by the next try.
			select {
			case <-over:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return func() {
		close(over)
		if !cancel() {
			<-stopped
		}
	}
}

func (c *conn) failure(result uintptr) error {
	if text := c.engine.lib.resultError(result); text != "" {
		return parseException(text)
	}
	return nil
}

func (c *conn) bytes(result uintptr) []byte {
	size := c.engine.lib.resultLength(result)
	if size == 0 {
		return nil
	}
	return unsafe.Slice(c.engine.lib.resultBuffer(result), size)
}

// call calls one of the functions that take a statement and a format.
func call(function func(uintptr, *byte, uintptr, *byte, uintptr) uintptr, handle uintptr, sql, format string) uintptr {
	sqlText, formatText := append([]byte(sql), 0), append([]byte(format), 0)
	result := function(handle, &sqlText[0], uintptr(len(sql)), &formatText[0], uintptr(len(format)))
	runtime.KeepAlive(sqlText)
	runtime.KeepAlive(formatText)
	return result
}
