package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// connections is a listener that bounds how many connections there are, all
// together and from one address, so that no client can hold all of them. At the
// limit a connection that waits for a request, or for the rest of its header, is
// closed for a new one: of the address that has most, the one that waits longest.
type connections struct {
	net.Listener
	max, perAddress int
	metrics         *metrics

	mu    sync.Mutex
	left  sync.Cond                 // a connection was closed, or the listener
	open  map[*connection]time.Time // since when it waits; zero while a request is handled
	from  map[netip.Prefix]int
	ended bool
}

// connection is one of them.
type connection struct {
	net.Conn
	all  *connections
	from netip.Prefix
}

func newConnections(ln net.Listener, most, perAddress int, m *metrics) *connections {
	l := &connections{
		Listener: ln, max: most, perAddress: perAddress, metrics: m,
		open: make(map[*connection]time.Time), from: make(map[netip.Prefix]int),
	}
	l.left.L = &l.mu
	return l
}

// Accept returns the next connection that there is place for.
func (l *connections) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
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

func (l *connections) Close() error {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.left.Signal()
	return l.Listener.Close()
}

// admit counts a connection once there is place for it. It refuses one of an address
// whose connections are as many as allowed, and all have a request.
func (l *connections) admit(c *connection) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.ended {
		full := l.from[c.from] >= l.perAddress
		if !full && len(l.open) < l.max {
			l.open[c] = time.Now()
			l.from[c.from]++
			return true
		}
		switch idle := l.longestIdle(c.from, full); {
		case idle != nil:
			l.metrics.connectionsClosed.Inc()
			l.remove(idle)
			_ = idle.Conn.Close()
		case full:
			l.metrics.connectionsRejected.Inc()
			return false
		default:
			l.left.Wait()
		}
	}
	return false
}

// longestIdle is the connection to close for a new one; only one of its own address if
// that address is full. Under the lock, as remove is.
func (l *connections) longestIdle(from netip.Prefix, only bool) (found *connection) {
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

func (l *connections) remove(c *connection) {
	if _, ok := l.open[c]; !ok {
		return
	}
	delete(l.open, c)
	if l.from[c.from]--; l.from[c.from] == 0 {
		delete(l.from, c.from)
	}
}

// state follows what the HTTP server says of its connections.
func (l *connections) state(conn net.Conn, state http.ConnState) {
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

// connectionKey is where the context of a request has the connection it came on.
type connectionKey struct{}

func withConnection(ctx context.Context, conn net.Conn) context.Context {
	if c, ok := beneathTLS(conn).(*connection); ok {
		return context.WithValue(ctx, connectionKey{}, c.Conn)
	}
	return ctx
}

func beneathTLS(conn net.Conn) net.Conn {
	if secure, ok := conn.(*tls.Conn); ok {
		return secure.NetConn()
	}
	return conn
}

// Close gives the place back; more than once is harmless.
func (c *connection) Close() error {
	c.all.mu.Lock()
	c.all.remove(c)
	c.all.mu.Unlock()
	c.all.left.Signal()
	return c.Conn.Close()
}

// prefixOf is what counts as one address: of IPv6 the network of 64 bits, which
// is what one client gets.
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
	if err != nil { // no address at all
		return netip.Prefix{}
	}
	return p
}
