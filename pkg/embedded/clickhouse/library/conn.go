package library

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"time"
	"unsafe"
)

// Conn is one connection of the engine: a session with a current database,
// settings and temporary tables of its own. It runs one statement at a time.
type Conn struct {
	engine *Engine
	handle *uintptr // chdb_connection*
	ID     string   // its Marker, by which KILL QUERY finds what it runs
}

// Disconnect ends it. Nothing may run on it any more.
func (c *Conn) Disconnect() { c.engine.lib.closeConn(c.handle) }

// Stats is what a statement has done. The engine counts what it reads from tables
// while a result is streamed only now and then, so ReadRows and ReadBytes may
// then be too low.
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

// Sink takes a piece of a result, which is only valid until it returns. Its
// error ends the statement.
type Sink func(chunk []byte) error

// Run runs a statement and hands its whole result, printed in format, to out in
// one piece. It is killed when ctx ends.
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

// notStreamable begins the engine's refusal to stream anything but a SELECT.
const notStreamable = "DB::Exception: Streaming query is not supported"

// IsNotStreamable tells that refusal from other errors.
func IsNotStreamable(err error) bool {
	exception, ok := err.(*Exception)
	return ok && exception.Name() == "BAD_ARGUMENTS" && strings.HasPrefix(exception.Message, notStreamable)
}

// Stream runs a SELECT and hands its result to out block by block, each printed
// in format as a document of its own. It is killed when ctx ends. A statement
// that is no SELECT is refused before it does anything: IsNotStreamable.
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
			lib.streamCancel(*c.handle, query) // Nothing, if the engine itself ended it.
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

// killWhenDone kills what runs on c once ctx ends, until the function it returns
// is called; after that it touches nothing any more.
func (c *Conn) killWhenDone(ctx context.Context) (stop func()) {
	over, stopped := make(chan struct{}), make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(stopped)
		for { // Again, because a statement that is only about to start is not found yet.
			_ = c.engine.Kill(c.ID) // Its own failure leaves the statement to be killed by the next try.
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

// PieceSize is how much data is handed to the engine at a time. It queues 16
// such pieces before Append waits for it.
const PieceSize = 1 << 20

// Insertion is an INSERT whose data is still coming. Until Finish it has stored
// nothing, unless its data outgrew one block of the engine (see the package's
// comment); it must end with Finish or Cancel.
type Insertion struct {
	conn   *Conn
	stream uintptr
	end    sync.Once
}

// Insert starts an INSERT: sql up to, but without, its FORMAT or VALUES.
func (c *Conn) Insert(sql, format string) (*Insertion, error) {
	lib := c.engine.lib
	stream := call(lib.insert, *c.handle, sql+"\n", format) // The engine appends FORMAT; a comment must not swallow it.
	if text := lib.insertError(stream); text != "" {
		lib.insertFree(stream)
		return nil, ParseException(text)
	}
	return &Insertion{conn: c, stream: stream}, nil
}

// Append hands data to the engine, which copies it. It reports false when the
// engine takes no more because the INSERT has failed; Finish says why.
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

// Finish stores what was appended. When it returns nil the data is stored; when
// it returns an error some of it may be, as in any ClickHouse: repeat the INSERT
// with its deduplication token. It is killed when ctx ends.
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

// Cancel drops what was appended. After Finish it does nothing.
func (i *Insertion) Cancel() {
	i.end.Do(func() {
		lib := i.conn.engine.lib
		lib.insertCancel(i.stream)
		lib.insertFree(i.stream)
	})
}

// Analysis is chdb_query_analysis_v1: what ClickHouse's own parser says of a
// text without running it.
type Analysis struct {
	size       uint32 // of this struct, set by the caller
	Statements uint32 // 0: the text does not parse; both of `a PARALLEL WITH b` count
	_          uint32
	Class      Class
}

// Class is what a statement does to what outlives it.
type Class uint32

const (
	Reads   Class = iota // SELECT, SHOW, DESCRIBE, EXPLAIN, EXISTS, CHECK
	Writes               // INSERT, CREATE, ALTER, DROP, TRUNCATE, OPTIMIZE and the like
	Global               // functions, users, whatever lives beside the databases
	Control              // SET, USE, SYSTEM, KILL, ATTACH, BACKUP, INTO OUTFILE, INSERT INTO FUNCTION
	Unknown              // it does not parse, or is not classified
)

// Classify asks the engine's parser about a text.
func (c *Conn) Classify(sql string) Analysis {
	about := Analysis{size: uint32(unsafe.Sizeof(Analysis{}))}
	text := append([]byte(sql), 0)
	if c.engine.lib.classify(*c.handle, &text[0], uintptr(len(sql)), nil, 0, &about) != 0 {
		about.Statements, about.Class = 0, Unknown
	}
	runtime.KeepAlive(text)
	return about
}
