package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/ClickHouse/ch-go/compress"
	"github.com/ClickHouse/ch-go/proto"

	"sluice/pkg/accept"
	"sluice/pkg/embedded/clickhouse/library"
)

const (
	helloTimeout = 10 * time.Second
	readBuffer   = 64 << 10
)

// native serves the native protocol.
type native struct {
	cfg    Config
	engine *engine
	logins *logins
	log    *slog.Logger

	buffers sync.Pool // *[]byte, buffers of blocks, reused

	mu       sync.Mutex
	clients  map[*client]struct{}
	known    int // logged-in clients
	readers  int // of these: analysts and modellers
	stopping bool
	done     sync.WaitGroup
}

func newNative(cfg Config, e *engine, l *logins, log *slog.Logger) *native {
	return &native{cfg: cfg, engine: e, logins: l, log: log, clients: map[*client]struct{}{}}
}

// serve accepts clients until the listener is closed. Their statements end with ctx.
func (n *native) serve(ctx context.Context, listener *accept.Listener) error {
	for {
		socket, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept native connections: %w", err)
		}
		c := &client{server: n, listener: listener, socket: socket, log: n.log.With("client", socket.RemoteAddr().String())}
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
	n.count(c, -1)
	n.mu.Unlock()
	n.done.Done()
}

// admit counts a logged-in client, and reports whether a session is free for it: with other
// users, analysts have half of them.
func (n *native) admit(c *client, as role) (limit int, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if workloads[as] == workloads[roleAnalyst] && n.readers >= n.cfg.Sessions/2 {
		return n.cfg.Sessions / 2, false
	}
	if n.known >= n.cfg.Sessions {
		return n.cfg.Sessions, false
	}
	c.as = as
	n.count(c, 1)
	return n.cfg.Sessions, true
}

// count counts a logged-in client. It needs the lock.
func (n *native) count(c *client, by int) {
	if c.as == "" {
		return
	}
	n.known += by
	if workloads[c.as] == workloads[roleAnalyst] {
		n.readers += by
	}
}

// drain lets no client start another statement, and returns when the last one has ended.
func (n *native) drain() {
	n.mu.Lock()
	n.stopping = true
	for c := range n.clients {
		c.leave()
	}
	n.mu.Unlock()
	n.done.Wait()
}

// client is one client of the native protocol. Only serve's goroutine reads and writes its
// packets, except for watch and progress during a statement.
type client struct {
	server   *native
	listener *accept.Listener
	socket   net.Conn
	log      *slog.Logger

	in       wire
	out      proto.Buffer // buffers packets until flush
	sending  sync.Mutex   // held per packet while a statement runs, since its progress is sent concurrently
	as       role         // once it has logged in
	revision int
	begun    time.Time        // of the statement
	sent     library.Progress // of the statement, as sent
	session  *session
	blocks   blockReader
	frames   *frames          // of input, if the client compresses
	packer   *compress.Writer // of output, if the client asks for compression
	packing  compress.Method
	broken   bool // a packet could not be read, so the start of the next is unknown

	mu      sync.Mutex
	busy    bool // within a packet; a stop closes the socket of an idle client
	leaving bool
}

// leave disconnects the client: immediately if idle, else after its statement.
func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving = true
	if !c.busy {
		c.socket.Close()
	}
}

// enter records the start or end of a packet. It is false if the client must disconnect.
func (c *client) enter(busy bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = busy
	return !c.leaving
}

func (c *client) serve(ctx context.Context) {
	defer func() {
		if crash := recover(); crash != nil { // one client must not crash the engine
			c.log.Error("clickhouse: a native connection crashed", "panic", crash, "stack", string(debug.Stack()))
		}
		if c.session != nil {
			c.session.close()
		}
		c.socket.Close()
	}()
	stop := context.AfterFunc(ctx, func() { c.socket.SetReadDeadline(time.Unix(1, 0)) }) // wakes an INSERT that waits for data
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

// refuse sends the client the reason for ending its connection.
func (c *client) refuse(err error) {
	var exception *library.Exception
	if !errors.As(err, &exception) {
		c.log.Debug("clickhouse: native connection ended", "reason", err)
		return
	}
	c.log.Warn("clickhouse: native connection refused", "security", true, "code", exception.Code, "reason", exception.Message)
	c.exception(exception)
	_ = c.flush() // the connection ends either way
}

// greet reads the hello, authenticates the user, and opens the session.
func (c *client) greet(ctx context.Context) error {
	c.socket.SetReadDeadline(time.Now().Add(helloTimeout))
	h, err := c.in.hello()
	if err != nil {
		return err
	}
	c.socket.SetReadDeadline(time.Time{})
	c.revision = h.revision
	c.blocks.custom = proto.FeatureCustomSerialization.In(c.revision)
	if h.revision < oldest {
		return library.Exceptionf("NOT_IMPLEMENTED", "Client speaks revision %d; %d is the oldest supported", h.revision, oldest)
	}
	who, err := c.server.logins.logIn(ctx, c.socket.RemoteAddr(), "native", h.user, h.password)
	if err != nil {
		return err
	}
	if limit, ok := c.server.admit(c, who.Role); !ok {
		return library.Exceptionf("TOO_MANY_SIMULTANEOUS_QUERIES", "Too many connections. Maximum: %d", limit)
	}
	c.listener.State(c.socket, http.StateActive) // not evicted in favour of others
	release, err := c.server.engine.slot(ctx, who.Role, waitForSlot)
	if err != nil {
		return err
	}
	defer release() // an idle session holds no slot
	if c.session, err = newSession(ctx, c.server.engine, h.database, who, false); err != nil {
		return err
	}
	var major, minor, patch int
	fmt.Sscanf(c.server.engine.Version, "%d.%d.%d", &major, &minor, &patch)
	about := proto.ServerHello{
		Name: "ClickHouse", Major: major, Minor: minor, Patch: patch,
		Revision: revision, Timezone: c.server.engine.Timezone, DisplayName: "embedded",
	}
	about.EncodeAware(&c.out, c.revision)
	if err := c.flush(); err != nil || !proto.FeatureAddendum.In(c.revision) {
		return err
	}
	c.socket.SetReadDeadline(time.Now().Add(helloTimeout))
	defer c.socket.SetReadDeadline(time.Time{})
	_, err = c.in.text(maxText) // quota key
	return err
}

// packet handles one packet. An error ends the connection.
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
	case packetData: // the rest of a failed INSERT
		_, err := c.readBlock()
		return err
	case packetTables:
		return c.tables(ctx)
	case packetCancel: // of a statement that has ended
		return nil
	default:
		return library.Exceptionf("UNEXPECTED_PACKET_FROM_CLIENT", "Unknown packet %d from client", packet)
	}
}
