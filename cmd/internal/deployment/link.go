package deployment

import (
	"bytes"
	"net"
	"sync"
	"time"
)

// Link is a TCP proxy between one program and its servers. Its methods affect all its
// connections.
type Link struct {
	// Ready reports whether a target accepts requests; if no target does, all are tried.
	// Default: all do.
	Ready func(target string) bool

	mu        sync.Mutex
	listeners []net.Listener
	open      map[net.Conn]struct{}
	gate      chan struct{} // closed while bytes may pass
	delay     time.Duration // of every chunk
	trap      *trap         // nil when none is set
	shut      bool
}

// trap waits for a chunk that contains a text.
type trap struct {
	text   []byte
	stall  bool // stall the link before that chunk
	sprung chan struct{}
}

// chunk is the maximum size of one forwarded write, small enough that a cut splits messages.
const chunk = 8 << 10

func NewLink() *Link {
	gate := make(chan struct{})
	close(gate)
	return &Link{open: map[net.Conn]struct{}{}, gate: gate}
}

// Listen accepts connections on a new address, and distributes them to the targets round
// robin.
func (l *Link) Listen(targets ...string) (addr string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	l.mu.Lock()
	l.listeners = append(l.listeners, listener)
	l.mu.Unlock()
	go func() { // until Close closes the listener
		for next := 0; ; next++ {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go l.serve(near, append(targets[next%len(targets):len(targets):len(targets)], targets[:next%len(targets)]...))
		}
	}()
	return listener.Addr().String(), nil
}

// serve forwards bytes between a client and the first target that accepts a connection.
func (l *Link) serve(near net.Conn, targets []string) {
	for _, ready := range []bool{true, false} {
		for _, target := range targets {
			if (l.Ready == nil || l.Ready(target)) != ready {
				continue
			}
			far, err := net.DialTimeout("tcp", target, time.Second)
			if err != nil {
				continue
			}
			if l.keep(near, far) {
				go l.pass(far, near)
				l.pass(near, far)
			}
			return
		}
	}
	near.Close()
}

// keep registers connections for Cut. It reports false when the link is closed.
func (l *Link) keep(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		if l.shut {
			c.Close()
			continue
		}
		l.open[c] = struct{}{}
	}
	return !l.shut
}

func (l *Link) pass(from, to net.Conn) {
	defer l.forget(from, to)
	buf := make([]byte, chunk)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			l.wait(buf[:n])
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (l *Link) forget(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		c.Close()
		delete(l.open, c)
	}
}

// wait holds a chunk for the link's gate and delay, and springs the trap.
func (l *Link) wait(b []byte) {
	l.mu.Lock()
	if l.trap != nil && bytes.Contains(b, l.trap.text) {
		close(l.trap.sprung)
		if l.trap.stall {
			l.block()
		}
		l.trap = nil
	}
	gate, delay := l.gate, l.delay
	l.mu.Unlock()
	<-gate
	if delay > 0 {
		time.Sleep(delay)
	}
}

// block closes the gate. The caller holds mu.
func (l *Link) block() {
	if l.flows() && !l.shut {
		l.gate = make(chan struct{})
	}
}

// flows reports whether the gate is open. The caller holds mu.
func (l *Link) flows() bool {
	select {
	case <-l.gate:
		return true
	default:
		return false
	}
}

// Cut resets every connection, and returns their number.
func (l *Link) Cut() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, which loses data in flight
		}
		c.Close()
	}
	return len(l.open) / 2
}

func (l *Link) Delay(by time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = by
}

func (l *Link) Stall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.block()
}

func (l *Link) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = 0
	if !l.flows() {
		close(l.gate)
	}
}

// Trap returns a channel that is closed when the next chunk with this text arrives. With
// stall the link holds that chunk and all later ones.
func (l *Link) Trap(text string, stall bool) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trap == nil || string(l.trap.text) != text {
		l.trap = &trap{text: []byte(text), sprung: make(chan struct{})}
	}
	l.trap.stall = l.trap.stall || stall
	return l.trap.sprung
}

func (l *Link) Disarm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trap = nil
}

func (l *Link) Close() {
	l.mu.Lock()
	l.shut = true
	for _, listener := range l.listeners {
		listener.Close()
	}
	l.mu.Unlock()
	l.Resume()
	l.Cut()
}
