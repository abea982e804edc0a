package api

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// pace reads a body and cuts off clients that keep us waiting: after a grace
// the body must have come at a certain rate, and it must end in time. Where
// others wait for the memory it holds, it must come faster.
//
// How fast it comes is told by its silence alone: the time in which a read waited
// and there was nothing to read. A machine that is busy reads late what has long
// come, and the client cannot help that.
type pace struct {
	body  io.Reader
	conn  net.Conn // nil where there is none: in tests
	cfg   *Config
	start time.Duration // since epoch, as all times here
	set   time.Duration // when the deadline was set last; 0 for never

	n      atomic.Int64 // bytes read
	silent atomic.Int64 // silence, of the reads that have ended
	waits  atomic.Int64 // when the read that waits now began; 0 for none

	mu      sync.Mutex // of the deadline
	control http.ResponseController
	cut     bool
}

func newPace(w http.ResponseWriter, r *http.Request, cfg *Config) *pace {
	conn, _ := r.Context().Value(connectionKey{}).(net.Conn)
	return &pace{body: r.Body, conn: conn, cfg: cfg, start: time.Since(epoch), control: *http.NewResponseController(w)}
}

// epoch is where times that are kept as numbers begin.
var epoch = time.Now()

// setEvery spares a system call for each read of a fast body.
const setEvery = 500 * time.Millisecond

func (p *pace) Read(b []byte) (int, error) {
	began := time.Since(epoch)
	if p.set == 0 || began-p.set >= min(setEvery, p.cfg.BodyGrace/4) {
		earned := p.cfg.BodyGrace + time.Duration(p.n.Load())*time.Second/time.Duration(p.cfg.BodyRate)
		silent := time.Duration(p.silent.Load())
		if err := p.deadline(epoch.Add(min(began-silent+earned, p.start+p.cfg.BodyTimeout))); err != nil {
			return 0, err
		}
		p.set = began
	}
	p.waits.Store(int64(began))
	n, err := p.body.Read(b)
	waited := time.Since(epoch) - began
	if waited >= late {
		waited = silenceOf(waited, p.conn)
	}
	p.waits.Store(0) // first: who looks in between may count too little, not twice
	p.silent.Add(int64(waited))
	p.n.Add(int64(n))
	return n, err
}

// silenceOf is what of a read's time was its client's: until the last bytes came.
// Where more of them lie there already, the client is ahead of us, and the last
// came when we had made room.
func silenceOf(waited time.Duration, conn net.Conn) time.Duration {
	ago := sinceBytesCame(conn)
	if bytesWait(conn) {
		return 0
	}
	return max(0, waited-ago)
}

// late is how long a read waits before it is worth a system call to ask whether
// its bytes had come before it was its turn.
const late = 5 * time.Millisecond

// silence is how long the client has kept us waiting.
func (p *pace) silence(now time.Time) time.Duration {
	silent, began := time.Duration(p.silent.Load()), time.Duration(p.waits.Load())
	if began == 0 {
		return silent
	}
	waits := now.Sub(epoch) - began
	if waits >= late && bytesWait(p.conn) {
		return silent // it is our turn
	}
	return silent + max(0, waits)
}

// deadline sets when reading ends, unless it was ended already.
func (p *pace) deadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return nil
	}
	return p.setDeadline(t)
}

// done lifts the deadline of a body that was read to its end. It would end the
// request's context while the records are being published. late says that it has
// done so: the body was cut off at the very moment of its end.
func (p *pace) done() (late bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut, p.setDeadline(time.Time{})
}

func (p *pace) setDeadline(t time.Time) error {
	err := p.control.SetReadDeadline(t)
	if errors.Is(err, http.ErrNotSupported) {
		return nil // a test recorder or the like, with no connection that could be slow
	}
	return err
}

const (
	// crowdedRate is the bytes per second that a body must keep up while others
	// need the memory it holds.
	crowdedRate = 1 << 20
	// newcomer is how long a body may keep us waiting before its rate is looked at.
	newcomer = 100 * time.Millisecond
)

// slow tells whether others should not wait for the body.
func (p *pace) slow(now time.Time) bool {
	silent := p.silence(now)
	return silent >= newcomer && float64(p.n.Load()) < crowdedRate*silent.Seconds()
}

// cutOff ends the reading of the body.
func (p *pace) cutOff(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	_ = p.setDeadline(now.Add(-time.Second)) // fails only when the connection is gone
}

func (p *pace) isCut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}
