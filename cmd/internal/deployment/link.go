package deployment

import (
	"bytes"
	"net"
	"sync"
	"time"
)

// Link is a TCP proxy between one program and the servers that it connects to. What is
// done to it is done to all of its connections.
type Link struct {
	// Ready tells whether a target takes requests; one that does not is only tried when
	// none does. Default: all are.
	Ready func(target string) bool

	mu        sync.Mutex
	listeners []net.Listener
	open      map[net.Conn]struct{}
	gate      chan struct{} // closed while bytes may pass
	delay     time.Duration // of every chunk
	trap      *trap         // nil when none is set
	shut      bool
}

// trap waits for a chunk that holds a text.
type trap struct {
	text   []byte
	stall  bool // the link, with that chunk the first that is held
	sprung chan struct{}
}

// chunk is what is passed on at a time: small, so that a cut comes amid what the
// programs take for one message.
const chunk = 8 << 10

// NewLink makes a link without connections.
func NewLink() *Link {
	gate := make(chan struct{})
	close(gate)
	return &Link{open: map[net.Conn]struct{}{}, gate: gate}
}

// Listen takes connections on an address of the link, and hands each to one of the
// targets, the next one each time.
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

// serve passes bytes between a client and the first target that takes the connection.
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

// keep remembers connections to be cut; not when the link is closed.
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

// pass passes on what comes from one side until either side ends.
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

// wait holds a chunk as long as it is to be held, and springs the trap.
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

// block needs mu.
func (l *Link) block() {
	if l.flows() && !l.shut {
		l.gate = make(chan struct{})
	}
}

// flows needs mu.
func (l *Link) flows() bool {
	select {
	case <-l.gate:
		return true
	default:
		return false
	}
}

// Cut resets every connection, and returns how many there were.
func (l *Link) Cut() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, which loses what is on its way
		}
		c.Close()
	}
	return len(l.open) / 2
}

// Delay makes every chunk take so much longer.
func (l *Link) Delay(by time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = by
}

// Stall lets nothing through until Resume.
func (l *Link) Stall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.block()
}

// Resume undoes Stall and Delay.
func (l *Link) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = 0
	if !l.flows() {
		close(l.gate)
	}
}

// Trap returns a channel that is closed when the next chunk with this text comes, which
// is held with all that follows if the link is to stall then.
func (l *Link) Trap(text string, stall bool) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trap == nil || string(l.trap.text) != text {
		l.trap = &trap{text: []byte(text), sprung: make(chan struct{})}
	}
	l.trap.stall = l.trap.stall || stall
	return l.trap.sprung
}

// Disarm takes the trap away.
func (l *Link) Disarm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trap = nil
}

// Close ends every connection, and takes no more.
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
