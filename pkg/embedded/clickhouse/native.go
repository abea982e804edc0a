package clickhouse

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/ClickHouse/ch-go/compress"
	"github.com/ClickHouse/ch-go/proto"
)

const (
	helloTimeout = 10 * time.Second
	readBuffer   = 64 << 10
)

// native serves the native protocol.
type native struct {
	cfg    Config
	engine *engine
	log    *slog.Logger

	mu       sync.Mutex
	clients  map[*client]struct{}
	stopping bool
	done     sync.WaitGroup
}

func newNative(cfg Config, e *engine, log *slog.Logger) *native {
	return &native{cfg: cfg, engine: e, log: log, clients: map[*client]struct{}{}}
}

// serve accepts clients until the listener is closed. What their statements do
// ends with ctx.
func (n *native) serve(ctx context.Context, listener net.Listener) error {
	for {
		socket, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil { // Out of file descriptors, most likely: let some clients go first.
			n.log.Warn("clickhouse: cannot accept a native connection", "error", err)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		c := &client{server: n, socket: socket, log: n.log.With("client", socket.RemoteAddr().String())}
		if !n.add(c) {
			socket.Close()
			continue
		}
		go func() {
			defer n.remove(c)
			c.serve(ctx)
		}()
	}
}

func (n *native) add(c *client) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopping {
		return false
	}
	n.clients[c] = struct{}{}
	n.done.Add(1)
	return true
}

func (n *native) remove(c *client) {
	n.mu.Lock()
	delete(n.clients, c)
	n.mu.Unlock()
	n.done.Done()
}

// drain lets no client begin another statement, and returns when the last one
// has gone.
func (n *native) drain() {
	n.mu.Lock()
	n.stopping = true
	for c := range n.clients {
		c.leave()
	}
	n.mu.Unlock()
	n.done.Wait()
}

// client is one client on the native protocol. Only serve's goroutine reads and
// writes its packets, but for the watch during a statement.
type client struct {
	server *native
	socket net.Conn
	log    *slog.Logger

	in       wire
	out      proto.Buffer // gathers packets until flush
	revision int
	session  *session
	blocks   blockReader
	frames   *frames          // in, when the client compresses
	packer   *compress.Writer // out, when the client asks for compression
	packing  compress.Method
	broken   bool // a packet could not be read: where the next one begins is not known

	mu      sync.Mutex
	busy    bool // inside of a packet; idle, a stop may close the socket
	leaving bool
}

// leave makes the client go: at once if it is idle, after its statement if not.
func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving = true
	if !c.busy {
		c.socket.Close()
	}
}

// enter notes that a packet has begun or ended. It reports false when the client
// has to go.
func (c *client) enter(busy bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = busy
	return !c.leaving
}

func (c *client) serve(ctx context.Context) {
	defer func() {
		if crash := recover(); crash != nil { // One client must not take the engine along.
			c.log.Error("clickhouse: a native connection crashed", "panic", crash, "stack", string(debug.Stack()))
		}
		if c.session != nil {
			c.session.close()
		}
		c.socket.Close()
	}()
	stop := context.AfterFunc(ctx, func() { c.socket.SetReadDeadline(time.Unix(1, 0)) }) // Wakes an INSERT that waits for data.
	defer stop()
	c.in = wire{bufio.NewReaderSize(c.socket, readBuffer)}
	c.blocks.max = uint64(c.server.cfg.MaxBlock)
	if err := c.greet(ctx); err != nil {
		c.refuse(err)
		return
	}
	for {
		packet, err := c.in.ReadByte()
		if err != nil || !c.enter(true) {
			return
		}
		if err := c.packet(ctx, packet); err != nil {
			c.refuse(err)
			return
		}
		if !c.enter(false) {
			return
		}
	}
}

// refuse tells the client, if it still listens, why its connection ends.
func (c *client) refuse(err error) {
	var exception *Exception
	if !errors.As(err, &exception) {
		c.log.Debug("clickhouse: native connection ended", "reason", err)
		return
	}
	c.log.Info("clickhouse: native connection refused", "code", exception.Code, "reason", exception.Message)
	c.exception(exception)
	_ = c.flush() // The client is gone either way.
}

// greet reads the hello, checks the user, and opens the session.
func (c *client) greet(ctx context.Context) error {
	c.socket.SetReadDeadline(time.Now().Add(helloTimeout))
	h, err := c.in.hello()
	if err != nil {
		return err
	}
	c.socket.SetReadDeadline(time.Time{})
	c.revision = h.revision
	if h.revision < oldest {
		return exceptionf("NOT_IMPLEMENTED", "Client speaks revision %d; %d is the oldest supported", h.revision, oldest)
	}
	if err := c.server.cfg.check(h.user, h.password); err != nil {
		return err
	}
	if c.session, err = newSession(ctx, c.server.engine, h.database); err != nil {
		return err
	}
	var major, minor, patch int
	fmt.Sscanf(c.server.engine.version, "%d.%d.%d", &major, &minor, &patch)
	about := proto.ServerHello{
		Name: "ClickHouse", Major: major, Minor: minor, Patch: patch,
		Revision: revision, Timezone: c.server.engine.timezone, DisplayName: "embedded",
	}
	about.EncodeAware(&c.out, c.revision)
	return c.flush()
}

// packet answers one packet. An error ends the connection.
func (c *client) packet(ctx context.Context, packet byte) error {
	switch packet {
	case packetPing:
		proto.ServerCodePong.Encode(&c.out)
		return c.flush()
	case packetQuery:
		q, err := c.in.query(c.revision)
		if err != nil {
			return err
		}
		return c.answer(ctx, q)
	case packetData: // The rest of an INSERT that has already failed.
		_, err := c.readBlock()
		return err
	case packetCancel: // Of a statement that is already over.
		return nil
	default:
		return exceptionf("UNEXPECTED_PACKET_FROM_CLIENT", "Unknown packet %d from client", packet)
	}
}

// readBlock reads the rest of a Data packet.
func (c *client) readBlock() (read block, err error) {
	defer func() { c.broken = c.broken || err != nil }()
	if _, err := c.in.text(maxText); err != nil { // table name
		return block{}, err
	}
	if read, err = c.blocks.read(); err != nil {
		return block{}, err
	}
	if c.blocks.src == c.frames && c.frames.rest() > 0 {
		return block{}, exceptionf("INCORRECT_DATA", "%d bytes follow a block in its frame", c.frames.rest())
	}
	return read, nil
}

// exception tells the client of an error.
func (c *client) exception(err *Exception) {
	proto.ServerCodeException.Encode(&c.out)
	answer := proto.Exception{Code: proto.Error(err.Code), Name: "DB::Exception", Message: err.Message}
	answer.EncodeAware(&c.out, c.revision)
}

// flush sends what is gathered. A client that does not read blocks it, and with
// it its own statement, but nobody else's.
func (c *client) flush() error {
	_, err := c.socket.Write(c.out.Buf)
	c.out.Reset()
	return err
}

// data sends a block: what FORMAT Native prints of it.
func (c *client) data(q query, body []byte) error {
	proto.ServerCodeData.Encode(&c.out)
	c.out.PutString("") // table name
	if !q.compressed {
		proto.BlockInfo{BucketNum: -1}.Encode(&c.out)
		if err := c.flush(); err != nil {
			return err
		}
		_, err := c.socket.Write(body)
		return err
	}
	var info proto.Buffer
	proto.BlockInfo{BucketNum: -1}.Encode(&info)
	for _, part := range [][]byte{info.Buf, body} {
		for len(part) > 0 {
			piece := part[:min(len(part), pieceSize)]
			part = part[len(piece):]
			if err := c.packer.Compress(piece); err != nil {
				return err
			}
			c.out.Buf = append(c.out.Buf, c.packer.Data...)
			if err := c.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// header sends a block of these columns without rows.
func (c *client) header(q query, columns []column) error {
	var body proto.Buffer
	body.PutInt(len(columns))
	body.PutInt(0)
	for _, column := range columns {
		body.PutString(column.name)
		body.PutString(column.typ)
	}
	return c.data(q, body.Buf)
}

// compression prepares both directions for a statement.
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

var errGone = fmt.Errorf("the client went away: %w", io.ErrUnexpectedEOF)
