// Package accept bounds the connections of a port, so that no client can hold all of
// them, or all file descriptors of the process.
package accept

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// share is the divisor of the file descriptors that connections of one port may take: a process has at most five ports,
// and needs others for files and servers.
const share = 8

// unable is how long Check fails after a shortage of file descriptors.
const unable = 10 * time.Second

// Config configures a Listener.
type Config struct {
	Address    string // host:port; port 0 takes a free one
	Max        int    // connections; fewer if the process may have less than eight times as many file descriptors; default 512
	PerAddress int    // of Max, from one address; default: all

	Closed   func() // an idle connection was closed for a new one; may be nil
	Rejected func() // a connection was rejected: its address is at its limit; may be nil
}

// Listener bounds connections, in total and per address. At the limit it closes an idle connection for a new one: the
// longest idle one of the address with the most. A connection is idle while it waits for a request, or for the rest of
// its header.
type Listener struct {
	net.Listener
	cfg Config
	log *slog.Logger

	mu    sync.Mutex
	left  sync.Cond                 // signals that a connection or the listener was closed
	open  map[*connection]time.Time // start of its idle time; zero while a request is handled
	from  map[netip.Prefix]int
	short time.Time // last time without a free file descriptor
	ended bool
}

// connection is a counted connection.
type connection struct {
	net.Conn
	all  *Listener
	from netip.Prefix
}

// Listen opens a port.
func Listen(cfg Config, log *slog.Logger) (*Listener, error) {
	ln, err := net.Listen("tcp", cfg.Address)
	if err != nil {
		return nil, err
	}
	return New(ln, cfg, log), nil
}

// New bounds the connections of a listener. It logs if the process's limit of file descriptors lowers Config.Max.
func New(ln net.Listener, cfg Config, log *slog.Logger) *Listener {
	nothing := func() {}
	cfg.Max = cmp.Or(cfg.Max, 512)
	if cfg.Closed == nil {
		cfg.Closed, cfg.Rejected = nothing, nothing
	}
	if fit := Max(); fit < cfg.Max {
		log.Warn("fewer connections than configured: the limit of file descriptors is low: raise it (ulimit -n, LimitNOFILE)",
			"address", ln.Addr().String(), "connections", fit, "configured", cfg.Max, "descriptors", descriptors())
		cfg.PerAddress, cfg.Max = min(cfg.PerAddress, max(1, fit/2)), fit
	}
	cfg.PerAddress = cmp.Or(cfg.PerAddress, cfg.Max)
	l := &Listener{Listener: ln, cfg: cfg, log: log, open: make(map[*connection]time.Time), from: make(map[netip.Prefix]int)}
	l.left.L = &l.mu
	return l
}

// Check is nil while the port can accept connections.
func (l *Listener) Check(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.short) < unable {
		return fmt.Errorf("no file descriptor was left for connections at %s: raise their limit (ulimit -n, LimitNOFILE)", l.Addr())
	}
	return nil
}

// Accept returns the next admitted connection.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			l.shorten()
			continue
		}
		if err != nil {
			return nil, err
		}
		c := &connection{Conn: conn, all: l, from: prefixOf(conn.RemoteAddr())}
		if l.admit(c) {
			return c, nil
		}
		_ = conn.Close()
	}
}

// shorten frees a file descriptor by closing the longest idle connection. It logs once per shortage.
func (l *Listener) shorten() {
	l.mu.Lock()
	if time.Since(l.short) > unable {
		l.log.Error("no file descriptor is left for a connection: raise their limit (ulimit -n, LimitNOFILE)", "address", l.Addr().String(), "open", len(l.open))
	}
	l.short = time.Now()
	if idle := l.longestIdle(netip.Prefix{}, false); idle != nil {
		l.evict(idle)
	}
	l.mu.Unlock()
	time.Sleep(20 * time.Millisecond)
}

// Close ends Accept.
func (l *Listener) Close() error {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.left.Signal()
	return l.Listener.Close()
}

// Idle counts the connections that wait for a request.
func (l *Listener) Idle() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, since := range l.open {
		if !since.IsZero() {
			n++
		}
	}
	return n
}

// admit counts a connection once there is room. It rejects one whose address is at its limit and has no idle
// connection.
func (l *Listener) admit(c *connection) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.ended {
		full := l.from[c.from] >= l.cfg.PerAddress
		if !full && len(l.open) < l.cfg.Max {
			l.open[c] = time.Now()
			l.from[c.from]++
			return true
		}
		switch idle := l.longestIdle(c.from, full); {
		case idle != nil:
			l.evict(idle)
		case full:
			l.cfg.Rejected()
			return false
		default:
			l.left.Wait()
		}
	}
	return false
}

// longestIdle is the connection to close for a new one; with only, one of its own address. It needs the lock, as do
// evict and remove.
func (l *Listener) longestIdle(from netip.Prefix, only bool) (found *connection) {
	for c, since := range l.open {
		if since.IsZero() || only && c.from != from {
			continue
		}
		if found == nil || cmp.Or(cmp.Compare(l.from[c.from], l.from[found.from]), l.open[found].Compare(since)) > 0 {
			found = c
		}
	}
	return found
}

func (l *Listener) evict(c *connection) {
	l.cfg.Closed()
	l.remove(c)
	_ = c.Conn.Close()
}

func (l *Listener) remove(c *connection) {
	if _, ok := l.open[c]; !ok {
		return
	}
	delete(l.open, c)
	if l.from[c.from]--; l.from[c.from] == 0 {
		delete(l.from, c.from)
	}
}

// State records the state of a connection: it is the ConnState of an HTTP server. Another server calls it with
// StateActive once it has authenticated a client.
func (l *Listener) State(conn net.Conn, state http.ConnState) {
	c, ok := beneathTLS(conn).(*connection)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.open[c]; !ok {
		return
	}
	switch state {
	case http.StateActive:
		l.open[c] = time.Time{}
	case http.StateIdle:
		l.open[c] = time.Now()
	}
}

// Max is the maximum of connections of one port, by the limit of file descriptors.
func Max() int { return max(1, descriptors()/share) }

// descriptors is the process's limit of file descriptors.
func descriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt
	}
	return int(min(uint64(limit.Cur), math.MaxInt32))
}

// connectionKey is the context key of a request's connection.
type connectionKey struct{}

// WithConnection is the ConnContext of an HTTP server, for Connection.
func WithConnection(ctx context.Context, conn net.Conn) context.Context {
	if c, ok := beneathTLS(conn).(*connection); ok {
		return context.WithValue(ctx, connectionKey{}, c.Conn)
	}
	return ctx
}

// Connection is the connection of a request, beneath TLS; nil without WithConnection.
func Connection(ctx context.Context) net.Conn {
	conn, _ := ctx.Value(connectionKey{}).(net.Conn)
	return conn
}

func beneathTLS(conn net.Conn) net.Conn {
	if secure, ok := conn.(*tls.Conn); ok {
		return secure.NetConn()
	}
	return conn
}

// Close frees the place of the connection; repeated calls are harmless.
func (c *connection) Close() error {
	c.all.mu.Lock()
	c.all.remove(c)
	c.all.mu.Unlock()
	c.all.left.Signal()
	return c.Conn.Close()
}

// prefixOf is the network that counts as one address: of IPv6 the /64, which one client gets.
func prefixOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap()
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	p, err := ip.WithZone("").Prefix(bits)
	if err != nil { // an invalid address
		return netip.Prefix{}
	}
	return p
}
