package main

import (
	"bytes"
	"net"
	"sync"
	"time"
)

// link is a TCP proxy between two services. It takes connections on an address of
// its own and hands each to one of its targets, the next one each time.
type link struct {
	listener net.Listener
	targets  []string

	mu    sync.Mutex
	next  int
	open  map[net.Conn]struct{}
	gate  chan struct{} // closed while bytes may pass
	delay time.Duration // of every chunk
	trap  *trap         // nil when none is set
	shut  bool
}

// trap waits for a chunk that holds a text.
type trap struct {
	text   []byte
	stall  bool // the link, with that chunk the first that is held
	sprung chan struct{}
}

// chunk is what is passed on at a time: small, so that a cut comes amid what
// the services take for one message.
const chunk = 8 << 10

func newLink(targets ...string) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	gate := make(chan struct{})
	close(gate)
	l := &link{listener: listener, targets: targets, open: map[net.Conn]struct{}{}, gate: gate}
	go l.accept() // until the listener is closed by close
	return l, nil
}

func (l *link) addr() string { return l.listener.Addr().String() }

func (l *link) accept() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		go l.connect(near)
	}
}

// connect finds a target that takes the connection; without one it is closed.
func (l *link) connect(near net.Conn) {
	l.mu.Lock()
	first := l.next
	l.next++
	l.mu.Unlock()
	for i := range l.targets {
		far, err := net.DialTimeout("tcp", l.targets[(first+i)%len(l.targets)], time.Second)
		if err != nil {
			continue
		}
		if !l.keep(near, far) {
			break
		}
		go l.pass(far, near)
		l.pass(near, far)
		return
	}
	near.Close()
}

// keep remembers connections to be cut; not when the link is closed.
func (l *link) keep(conns ...net.Conn) bool {
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
func (l *link) pass(from, to net.Conn) {
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

func (l *link) forget(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		c.Close()
		delete(l.open, c)
	}
}

// wait holds a chunk as long as it is to be held, and springs the trap.
func (l *link) wait(b []byte) {
	l.mu.Lock()
	gate, delay := l.gate, l.delay
	if l.trap != nil && bytes.Contains(b, l.trap.text) {
		close(l.trap.sprung)
		if l.trap.stall && l.flows() && !l.shut {
			l.gate = make(chan struct{})
			gate = l.gate
		}
		l.trap = nil
	}
	l.mu.Unlock()
	<-gate
	if delay > 0 {
		time.Sleep(delay)
	}
}

// cut resets every connection.
func (l *link) cut() int {
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

// stall lets nothing through until resume.
func (l *link) stall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flows() && !l.shut {
		l.gate = make(chan struct{})
	}
}

func (l *link) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.flows() {
		close(l.gate)
	}
}

// flows needs mu.
func (l *link) flows() bool {
	select {
	case <-l.gate:
		return true
	default:
		return false
	}
}

func (l *link) slow(by time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = by
}

// await gives a channel that is closed when the next chunk with text comes.
func (l *link) await(text string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trap == nil || string(l.trap.text) != text {
		l.trap = &trap{text: []byte(text), sprung: make(chan struct{})}
	}
	return l.trap.sprung
}

// stallAt is await, and stalls the link with that chunk.
func (l *link) stallAt(text string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trap == nil || string(l.trap.text) != text {
		l.trap = &trap{text: []byte(text), sprung: make(chan struct{})}
	}
	l.trap.stall = true
	return l.trap.sprung
}

// letPass takes a trap away.
func (l *link) letPass() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trap = nil
}

func (l *link) close() {
	l.mu.Lock()
	l.shut = true
	l.mu.Unlock()
	l.listener.Close()
	l.resume()
	l.cut()
}
