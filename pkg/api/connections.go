package api

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// connections is a listener that bounds how many connections there are, all
// together and from one address, so that no client can hold all of them. A
// connection that waits for a request, or for the rest of its header, makes
// place for a new one, the one that waits longest first.
type connections struct {
	net.Listener
	most       int
	perAddress int
	metrics    *metrics

	mu     sync.Mutex
	open   int
	from   map[netip.Prefix]int
	idle   *list.List    // of *connection, the one that waits longest first
	closed chan struct{} // wakes Accept: there is place, or the end
	ended  bool
}

// connection is one of them.
type connection struct {
	net.Conn
	all  *connections
	from netip.Prefix

	// Under the lock of all.
	waits  *list.Element // among the idle; nil while a request is handled
	since  time.Time     // when it began to wait
	closed bool
}

func newConnections(ln net.Listener, most, perAddress int, m *metrics) *connections {
	return &connections{
		Listener: ln, most: most, perAddress: perAddress, metrics: m,
		from: make(map[netip.Prefix]int), idle: list.New(), closed: make(chan struct{}, 1),
	}
}

// Accept returns the next connection that there is place for. One address that
// has as many as it may is refused; when all have, the next one waits.
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
	l.wake()
	return l.Listener.Close()
}

// admit counts a connection, or says that it may not stay.
func (l *connections) admit(c *connection) bool {
	for {
		l.mu.Lock()
		var leaves *connection
		full, ended := l.open >= l.most, l.ended
		switch {
		case l.from[c.from] >= l.perAddress:
			leaves, full = l.longest(c.from), true
			if leaves == nil {
				l.mu.Unlock()
				l.metrics.connectionsRefused.Inc()
				return false
			}
		case full:
			leaves = l.mostIdle()
		case l.open >= l.most/4*3:
			if leaves = l.mostIdle(); leaves != nil && time.Since(leaves.since) < restless {
				leaves = nil
			}
		}
		if !full && !ended {
			l.open++
			l.from[c.from]++
			l.wait(c)
		}
		l.mu.Unlock()
		switch {
		case ended:
			return false
		case leaves != nil:
			l.metrics.connectionsClosed.Inc()
			_ = leaves.Close()
		case full:
			<-l.closed
		}
		if !full {
			return true
		}
	}
}

// restless is how long a connection may wait for its next request near the
// limit.
const restless = time.Second

// longest is the connection of an address that waits longest.
func (l *connections) longest(from netip.Prefix) *connection {
	for e := l.idle.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*connection); c.from == from {
			return c
		}
	}
	return nil
}

// mostIdle is the connection that waits longest, of the address that has most.
func (l *connections) mostIdle() *connection {
	var found *connection
	for e := l.idle.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*connection); found == nil || l.from[c.from] > l.from[found.from] {
			found = c
		}
	}
	return found
}

// wait puts a connection among the idle, busy takes it out. Under the lock.
func (l *connections) wait(c *connection) {
	if c.waits == nil && !c.closed {
		c.since = time.Now()
		c.waits = l.idle.PushBack(c)
	}
}

func (l *connections) busy(c *connection) {
	if c.waits != nil {
		l.idle.Remove(c.waits)
		c.waits = nil
	}
}

func (l *connections) wake() {
	select {
	case l.closed <- struct{}{}:
	default:
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
	switch state {
	case http.StateActive:
		l.busy(c)
	case http.StateIdle:
		l.wait(c)
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
	l := c.all
	l.mu.Lock()
	if !c.closed {
		c.closed = true
		l.busy(c)
		l.open--
		if l.from[c.from]--; l.from[c.from] == 0 {
			delete(l.from, c.from)
		}
	}
	l.mu.Unlock()
	l.wake()
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
