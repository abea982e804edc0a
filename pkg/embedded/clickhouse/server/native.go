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

	buffers sync.Pool // *[]byte, for blocks; of memory that was used before

	mu       sync.Mutex
	clients  map[*client]struct{}
	known    int // of clients: those that have logged in
	readers  int // of these: analysts and modellers
	stopping bool
	done     sync.WaitGroup
}

func newNative(cfg Config, e *engine, l *logins, log *slog.Logger) *native {
	return &native{cfg: cfg, engine: e, logins: l, log: log, clients: map[*client]struct{}{}}
}

// serve accepts clients until the listener is closed. What their statements do
// ends with ctx.
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

// admit counts a client that has logged in, and reports whether there is a session for it:
// where there are other users, analysts have half of them.
func (n *native) admit(c *client, as role) (most int, ok bool) {
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

// count counts a client that has logged in. Under the lock.
func (n *native) count(c *client, by int) {
	if c.as == "" {
		return
	}
	n.known += by
	if workloads[c.as] == workloads[roleAnalyst] {
		n.readers += by
	}
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
	server   *native
	listener *accept.Listener
	socket   net.Conn
	log      *slog.Logger

	in       wire
	out      proto.Buffer // gathers packets until flush
	sending  sync.Mutex   // held for a packet while a statement runs: its progress is told beside it
	as       role         // once it has logged in
	revision int
	begun    time.Time        // of the statement
	told     library.Progress // of it
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
	var exception *library.Exception
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
	c.blocks.custom = proto.FeatureCustomSerialization.In(c.revision)
	if h.revision < oldest {
		return library.Exceptionf("NOT_IMPLEMENTED", "Client speaks revision %d; %d is the oldest supported", h.revision, oldest)
	}
	who, err := c.server.logins.logIn(ctx, c.socket.RemoteAddr(), "native", h.user, h.password)
	if err != nil {
		return err
	}
	if most, ok := c.server.admit(c, who.Role); !ok {
		return library.Exceptionf("TOO_MANY_SIMULTANEOUS_QUERIES", "Too many connections. Maximum: %d", most)
	}
	c.listener.State(c.socket, http.StateActive) // It makes no place for others.
	release, err := c.server.engine.slot(ctx, who.Role, waitForSlot)
	if err != nil {
		return err
	}
	defer release() // An idle session holds none.
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
	case packetTables:
		return c.tables(ctx)
	case packetCancel: // Of a statement that is already over.
		return nil
	default:
		return library.Exceptionf("UNEXPECTED_PACKET_FROM_CLIENT", "Unknown packet %d from client", packet)
	}
}
