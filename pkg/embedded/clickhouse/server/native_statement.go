package server

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/ClickHouse/ch-go/proto"

	"sluice/pkg/embedded/clickhouse/library"
)

// answer runs a statement and sends its result. An error ends the connection; an exception
// of the statement does not.
func (c *client) answer(ctx context.Context, q query) error {
	c.begun = time.Now()
	c.compression(q)
	external, err := c.externalTables()
	if err != nil {
		return err
	}
	var done library.Stats
	switch {
	case external.err != nil:
		err = external.err
	case q.stage != wholeQuery:
		err = errWholeQueries
	default:
		done, err = c.inSlot(ctx, q, external.tables)
	}
	var exception *library.Exception
	if err != nil && (c.broken || !errors.As(err, &exception)) {
		return err
	}
	if exception != nil {
		c.log.Debug("clickhouse: statement failed", "query_id", q.id, "code", exception.Code)
		c.exception(exception)
		return c.flush()
	}
	c.summary(done)
	proto.ServerCodeEndOfStream.Encode(&c.out)
	return c.flush()
}

// externalTables reads the external tables of a statement, up to an empty block. Clients
// read no answer before, so it reads all of them, even refused ones.
func (c *client) externalTables() (some externals, err error) {
	for {
		packet, err := c.in.ReadByte()
		if err != nil {
			return some, unexpectedEnd(err)
		}
		if packet == packetScalar { // unused: whole queries are of one shard
			if _, err := c.readBlock(); err != nil {
				return some, err
			}
			continue
		}
		if packet != packetData {
			return some, library.Exceptionf("UNEXPECTED_PACKET_FROM_CLIENT", "Unexpected packet %d after a query", packet)
		}
		read, err := c.readBlock()
		if err != nil || read.isEnd() {
			return some, err
		}
		some.add(c.session, read, c.blocks.columns)
	}
}

// inSlot runs a statement once it has a slot.
func (c *client) inSlot(ctx context.Context, q query, external []externalTable) (library.Stats, error) {
	release, err := c.server.engine.slot(ctx, c.session.user.Role, waitForSlot)
	if err != nil {
		return library.Stats{}, err
	}
	defer release()
	defer c.server.engine.running.enter(q.id, c.session.conn.ID)()
	drop, err := c.session.lend(ctx, external)
	if err != nil {
		return library.Stats{}, err
	}
	defer drop()
	return c.statement(ctx, q)
}

func (c *client) statement(ctx context.Context, q query) (library.Stats, error) {
	c.sent = library.Progress{}
	stmt := parseStatement(c.session.named(q.body))
	if err := stmt.check(); err != nil {
		return library.Stats{}, err
	}
	if err := c.session.apply(ctx, q.settings); err != nil {
		return library.Stats{}, err
	}
	for _, p := range q.params { // the value is quoted as in ClickHouse
		value := p.value
		if strings.HasPrefix(value, "'") {
			value = unescape(value[1:], '\'')
		}
		if err := c.session.parameter(ctx, p.name, value); err != nil {
			return library.Stats{}, err
		}
	}
	if i := stmt.insert; i != nil && strings.Trim(i.data, "; \t\r\n\f\v") == "" {
		if err := c.session.permitInsert(ctx, i); err != nil {
			return library.Stats{}, err
		}
		return c.insert(ctx, q, i)
	}
	if err := c.session.permit(ctx, stmt); err != nil {
		return library.Stats{}, err
	}
	watched, stop := c.watch(ctx, true)
	sent := c.sendProgress(watched)
	done, err := c.rows(watched, q, stmt)
	c.sent = sent()
	if gone := stop(); gone != nil {
		return done, gone
	}
	if err == nil {
		c.session.ran(stmt)
	}
	return done, err
}

// rows runs a statement without client data and sends its result: first an empty block with
// the columns, as servers do and some clients require, then the blocks.
func (c *client) rows(ctx context.Context, q query, stmt statement) (library.Stats, error) {
	sql := stmt.text
	if stmt.insert == nil {
		sql = stmt.withoutFormat()
	}
	out := &reframer{
		revision: c.revision, describe: func() ([]column, error) { return c.session.describeApart(ctx, sql) },
		begin: func(columns []column) error { return c.header(q, columns) }, block: func(body []byte) error { return c.data(q, body) },
	}
	done, err := c.session.conn.Stream(ctx, sql, "Native", out.one)
	if err == nil && !out.begun {
		columns, err := c.session.describe(ctx, sql)
		if err != nil {
			return done, err
		}
		return done, c.header(q, columns)
	}
	if !library.IsNotStreamable(err) {
		return done, err
	}
	return c.session.conn.Run(ctx, sql, "Native", out.many)
}

// summary sends the profile of a statement.
func (c *client) summary(done library.Stats) {
	if done.ResultRows > 0 {
		profile := proto.Profile{Rows: done.ResultRows, Blocks: done.Blocks, Bytes: done.ResultBytes}
		profile.EncodeAware(&c.out, c.revision) // writes its code too, unlike the others
	}
	proto.ServerCodeProgress.Encode(&c.out)
	progress := proto.Progress{
		Rows: done.ReadRows - min(done.ReadRows, c.sent.Rows), Bytes: done.ReadBytes - min(done.ReadBytes, c.sent.Bytes),
		WroteRows: done.WrittenRows, WroteBytes: done.WrittenBytes,
		ElapsedNs: uint64(time.Since(c.begun)),
	}
	progress.EncodeAware(&c.out, c.revision)
}

// insert runs an INSERT whose data the client sends in blocks.
func (c *client) insert(ctx context.Context, q query, i *insert) (library.Stats, error) {
	columns, err := c.session.insertColumns(ctx, i)
	if err != nil {
		return library.Stats{}, err
	}
	insertion, err := c.session.conn.Insert(i.head, "Native")
	if err != nil {
		return library.Stats{}, err
	}
	defer insertion.Cancel() // after a disconnect or cancel nothing is stored
	if err := c.header(q, columns); err != nil {
		return library.Stats{}, err
	}
	defer c.lendBuffer()()
	whole := true
	for whole {
		packet, err := c.in.ReadByte()
		if err != nil {
			return library.Stats{}, unexpectedEnd(err)
		}
		switch packet {
		case packetData:
		case packetCancel:
			return library.Stats{}, library.Exceptionf("QUERY_WAS_CANCELLED", "Query was cancelled by the client")
		default:
			c.broken = true
			return library.Stats{}, library.Exceptionf("UNEXPECTED_PACKET_FROM_CLIENT", "Unexpected packet %d in an INSERT", packet)
		}
		read, err := c.readBlock()
		if err != nil {
			return library.Stats{}, err
		}
		// only whole blocks are passed on, so a truncated one leaves no rows
		end := read.isEnd()
		if !end {
			whole = read.rows == 0 || insertion.Append(read.body)
		}
		if err := c.profileEvents(); err != nil {
			return library.Stats{}, err
		}
		if end {
			break
		}
	}
	// From here on a disconnect changes nothing: the client cannot know whether its data
	// is stored, and retries. Only an explicit Cancel kills.
	watched, stop := c.watch(ctx, false)
	done, err := insertion.Finish(watched)
	if err == nil && !whole {
		err = library.Exceptionf("CANNOT_READ_ALL_DATA", "The engine accepted only a part of the data")
	}
	if gone := stop(); gone != nil && err == nil {
		err = gone
	}
	return done, err
}

// lendBuffer lends the client a large buffer for the blocks of an INSERT, if one is free:
// an idle client keeps none.
func (c *client) lendBuffer() (takeBack func()) {
	const large = 8 << 20
	if lent, ok := c.server.buffers.Get().(*[]byte); ok {
		c.blocks.buf = *lent
	}
	return func() {
		if buf := c.blocks.buf; cap(buf) > large {
			c.blocks.buf = nil
			c.server.buffers.Put(&buf)
		}
	}
}

// watch reads packets while a statement runs: a Cancel ends the returned context, and so
// does, if endWithClient, a disconnect. The returned function ends the watch; its error means
// that the client disconnected.
func (c *client) watch(ctx context.Context, endWithClient bool) (context.Context, func() error) {
	watched, cancel := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() {
		result <- func() error {
			next, err := c.in.Peek(1)
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded): // set by stop
				return nil
			case err != nil:
				if endWithClient {
					cancel()
				}
				return errDisconnected
			case next[0] == packetCancel:
				c.in.Discard(1)
				cancel()
			}
			return nil // other packets are handled after the statement
		}()
	}()
	return watched, func() error {
		c.socket.SetReadDeadline(time.Unix(1, 0))
		gone := <-result
		if ctx.Err() == nil {
			c.socket.SetReadDeadline(time.Time{})
		}
		cancel()
		return gone
	}
}
