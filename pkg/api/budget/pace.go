package budget

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Pace reads a body and aborts a slow client: after a grace the body must arrive at a minimum
// rate, and it must end in time. While other requests wait for its memory, the rate is
// higher.
//
// Only silence counts: time in which a read waited and the connection was empty. On a busy
// machine, bytes that arrived long ago are read late.
type Pace struct {
	body  io.Reader
	conn  net.Conn // nil in tests without a connection, whose bytes have all arrived
	of    Patience
	start time.Duration // since epoch, like all times here
	set   time.Duration // time of the last deadline change; 0: never

	n      atomic.Int64 // bytes read
	silent atomic.Int64 // silence in completed reads, less the time that bytes waited to be read
	waits  atomic.Int64 // start of the read in progress; 0: none

	mu      sync.Mutex // of the deadline
	control http.ResponseController
	cut     bool
}

// Patience limits how slowly a body may arrive.
type Patience struct {
	Timeout time.Duration // to read all of it
	Grace   time.Duration // initial time without a minimum rate
	Rate    int           // bytes per second
}

const (
	setEvery    = 500 * time.Millisecond // saves a system call per read of a fast body
	late        = 5 * time.Millisecond   // a read this long is worth a system call
	newcomer    = 100 * time.Millisecond // of silence, before the rate of a body is judged
	crowdedRate = 1 << 20                // bytes per second while other requests wait
	firstRead   = 16 << 10               // bytes; see Read
)

var epoch = time.Now()

// NewPace reads the body of a request that arrives over conn.
func NewPace(w http.ResponseWriter, r *http.Request, conn net.Conn, of Patience) *Pace {
	return &Pace{body: r.Body, conn: conn, of: of, start: time.Since(epoch), control: *http.NewResponseController(w)}
}

func (p *Pace) Read(b []byte) (int, error) {
	began := time.Since(epoch)
	if p.set == 0 || began-p.set >= min(setEvery, p.of.Grace/4) {
		earned := p.of.Grace + time.Duration(p.n.Load())*time.Second/time.Duration(p.of.Rate)
		silent := time.Duration(p.silent.Load())
		if err := p.deadline(epoch.Add(min(began-silent+earned, p.start+p.of.Timeout)), false); err != nil {
			return 0, err
		}
		p.set = began
	}
	unread := false
	if p.n.Load() > 0 { // a small body is read in one go, without a system call
		unread, _ = p.arrival()
	}
	p.waits.Store(int64(began))
	// A read that drains the connection early closes its TCP window: on a busy machine
	// the rest may then wait for a timer of the client's kernel, which looks like silence.
	n, err := p.body.Read(b[:min(len(b), max(firstRead, 3*int(p.n.Load())))])
	waited := time.Since(epoch) - began
	if waited >= late {
		// If bytes are read late, the kernel's buffer fills and drops some: the client resends them after about as
		// long.
		if after, ago := p.arrival(); unread || after {
			waited = -waited
		} else {
			waited = max(0, waited-ago)
		}
	}
	p.waits.Store(0) // first: a concurrent check may count too little, never twice
	p.silent.Add(int64(waited))
	p.n.Add(int64(n))
	return n, err
}

// Waited returns how long ago the last bytes of a connection arrived; 0 if unknown on this system.
func Waited(conn net.Conn) time.Duration {
	if conn == nil {
		return 0
	}
	_, ago := arrival(conn)
	return ago
}

// arrival reports whether bytes wait on the connection, and how long ago the last ones came.
func (p *Pace) arrival() (unread bool, ago time.Duration) {
	if p.conn == nil {
		return true, 0
	}
	return arrival(p.conn)
}

// slow reports whether the body is too slow for waiting requests.
func (p *Pace) slow() bool {
	silent := time.Duration(p.silent.Load())
	if began := time.Duration(p.waits.Load()); began > 0 {
		if waits := time.Since(epoch) - began; waits >= late {
			if unread, _ := p.arrival(); !unread {
				silent += waits
			}
		}
	}
	return silent >= newcomer && float64(p.n.Load()) < crowdedRate*silent.Seconds()
}

// Done ends the watch over an unwatched body, and reports whether it was aborted. If not, it
// clears the deadline, which would end the request's context during publishing.
func (p *Pace) Done() (cut bool, err error) {
	err = p.deadline(time.Time{}, false)
	return p.cut, err
}

// cutOff aborts reading.
func (p *Pace) cutOff() { _ = p.deadline(time.Now().Add(-time.Second), true) } // fails only on a closed connection

// deadline sets the read deadline, unless the body was aborted.
func (p *Pace) deadline(t time.Time, cut bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return nil
	}
	p.cut = cut
	err := p.control.SetReadDeadline(t)
	if errors.Is(err, http.ErrNotSupported) {
		return nil // a test recorder is never slow
	}
	return err
}
