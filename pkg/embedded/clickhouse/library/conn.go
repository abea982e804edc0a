package library

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"time"
	"unsafe"
)

// Conn is one connection of the engine: a session with its own current database, settings,
// and temporary tables. It runs one statement at a time.
type Conn struct {
	engine *Engine
	handle *uintptr // chdb_connection*
	ID     string   // its Marker, by which KILL QUERY finds its statement
}

// Disconnect closes it. No statement may run.
func (c *Conn) Disconnect() { c.engine.lib.closeConn(c.handle) }

// Stats are the counts of a statement. While a result is streamed the engine updates what
// it read from tables only occasionally: ReadRows and ReadBytes may be too low.
type Stats struct {
	ResultRows, ResultBytes   uint64
	ReadRows, ReadBytes       uint64
	WrittenRows, WrittenBytes uint64
	Blocks                    uint64
}

func (s *Stats) add(lib *functions, result uintptr) {
	s.ResultRows += lib.rowsRead(result)
	s.ResultBytes += lib.bytesRead(result)
	s.ReadRows += lib.storageRows(result)
	s.ReadBytes += lib.storageBytes(result)
	s.WrittenRows += lib.rowsWritten(result)
	s.WrittenBytes += lib.bytesWritten(result)
}

// Sink receives a part of a result, valid until it returns. Its error ends the statement.
type Sink func(chunk []byte) error

// Run runs a statement and passes its whole result, in format, to out. The statement is
// killed when ctx ends.
func (c *Conn) Run(ctx context.Context, sql, format string, out Sink) (Stats, error) {
	defer c.killWhenDone(ctx)()
	lib := c.engine.lib
	result := call(lib.query, *c.handle, sql, format)
	defer lib.destroyResult(result)
	var done Stats
	if err := c.failure(result); err != nil {
		return done, err
	}
	done.add(lib, result)
	if chunk := c.bytes(result); len(chunk) > 0 && out != nil {
		return done, out(chunk)
	}
	return done, nil
}

// notStreamable begins the engine's error for streaming anything but a SELECT.
const notStreamable = "DB::Exception: Streaming query is not supported"

func IsNotStreamable(err error) bool {
	exception, ok := err.(*Exception)
	return ok && exception.Name() == "BAD_ARGUMENTS" && strings.HasPrefix(exception.Message, notStreamable)
}

// Stream runs a SELECT and passes its result to out block by block, each a document in
// format. It is killed when ctx ends. Other statements are refused before they do anything:
// IsNotStreamable.
func (c *Conn) Stream(ctx context.Context, sql, format string, out Sink) (Stats, error) {
	defer c.killWhenDone(ctx)()
	lib := c.engine.lib
	var done Stats
	query := call(lib.streamQuery, *c.handle, sql, format)
	defer lib.destroyResult(query)
	if err := c.failure(query); err != nil {
		return done, err
	}
	for {
		more, err := c.fetch(query, &done, out)
		if err != nil {
			lib.streamCancel(*c.handle, query) // no-op if the engine ended it
			return done, err
		}
		if !more {
			return done, nil
		}
	}
}

func (c *Conn) fetch(query uintptr, done *Stats, out Sink) (more bool, err error) {
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
	done.Blocks++
	return true, out(chunk)
}

// killWhenDone kills the statement of c when ctx ends, unless stop was called before.
func (c *Conn) killWhenDone(ctx context.Context) (stop func()) {
	over, stopped := make(chan struct{}), make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(stopped)
		for { // repeated: a statement that has not started yet is not found
			_ = c.engine.Kill(c.ID) // the next iteration retries
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

func (c *Conn) failure(result uintptr) error {
	if text := c.engine.lib.resultError(result); text != "" {
		return ParseException(text)
	}
	return nil
}

func (c *Conn) bytes(result uintptr) []byte {
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

// PieceSize is the data passed to the engine at a time. It queues 16 before Append blocks.
const PieceSize = 1 << 20

// Insertion is an INSERT that receives data. Until Finish it has stored nothing, unless its
// data exceeded one block of the engine (see the package's comment). It must end with
// Finish or Cancel.
type Insertion struct {
	conn   *Conn
	stream uintptr
	end    sync.Once
}

// Insert starts an INSERT: sql up to, but without, its FORMAT or VALUES.
func (c *Conn) Insert(sql, format string) (*Insertion, error) {
	lib := c.engine.lib
	stream := call(lib.insert, *c.handle, sql+"\n", format) // the newline ends a comment before FORMAT
	if text := lib.insertError(stream); text != "" {
		lib.insertFree(stream)
		return nil, ParseException(text)
	}
	return &Insertion{conn: c, stream: stream}, nil
}

// Append passes data to the engine, which copies it; false if the INSERT has failed, see
// Finish.
func (i *Insertion) Append(data []byte) bool {
	for len(data) > 0 {
		piece := data[:min(len(data), PieceSize)]
		if i.conn.engine.lib.insertAppend(i.stream, &piece[0], uintptr(len(piece))) != 0 {
			return false
		}
		data = data[len(piece):]
	}
	return true
}

// Finish stores the appended data. After an error some of it may be stored, as in any
// ClickHouse: retry the INSERT with its deduplication token. It is killed when ctx ends.
func (i *Insertion) Finish(ctx context.Context) (done Stats, err error) {
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

// Cancel drops the appended data; no-op after Finish
func (i *Insertion) Cancel() {
	i.end.Do(func() {
		lib := i.conn.engine.lib
		lib.insertCancel(i.stream)
		lib.insertFree(i.stream)
	})
}

// Analysis is chdb_query_analysis_v1: the result of ClickHouse's parser for a text.
type Analysis struct {
	size       uint32 // of this struct, set by the caller
	Statements uint32 // 0: syntax error; `a PARALLEL WITH b` counts as two
	_          uint32
	Class      Class
}

// Class is the lasting effect of a statement.
type Class uint32

const (
	Reads   Class = iota // SELECT, SHOW, DESCRIBE, EXPLAIN, EXISTS, CHECK
	Writes               // INSERT, CREATE, ALTER, DROP, TRUNCATE, OPTIMIZE and the like
	Global               // functions, users, other objects outside databases
	Control              // SET, USE, SYSTEM, KILL, ATTACH, BACKUP, INTO OUTFILE, INSERT INTO FUNCTION
	Unknown              // syntax error, or not classified
)

// Classify analyses a text by the engine's parser.
func (c *Conn) Classify(sql string) Analysis {
	about := Analysis{size: uint32(unsafe.Sizeof(Analysis{}))}
	text := append([]byte(sql), 0)
	if c.engine.lib.classify(*c.handle, &text[0], uintptr(len(sql)), nil, 0, &about) != 0 {
		about.Statements, about.Class = 0, Unknown
	}
	runtime.KeepAlive(text)
	return about
}
