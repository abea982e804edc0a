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

// Pace reads a body and cuts off clients that keep us waiting: after a grace
// the body must have come at a certain rate, and it must end in time. Where
// others wait for the memory it holds, it must come faster.
//
// How fast it comes is told by its silence alone: the time in which a read waited
// and there was nothing to read. A machine that is busy reads late what has long
// come, and the client cannot help that.
type Pace struct {
	body  io.Reader
	conn  net.Conn // nil where there is none: in tests
	of    Patience
	start time.Duration // since epoch, as all times here
	set   time.Duration // when the deadline was set last; 0 for never

	n      atomic.Int64 // bytes read
	silent atomic.Int64 // silence, of the reads that have ended
	waits  atomic.Int64 // when the read that waits now began; 0 for none

	mu      sync.Mutex // of the deadline
	control http.ResponseController
	cut     bool
}

// Patience is how slow a body may be.
type Patience struct {
	Timeout time.Duration // to read all of it
	Grace   time.Duration // how long it may be slower than Rate
	Rate    int           // bytes per second that it must keep up
}

// NewPace reads the body of a request, which comes over a connection: nil where
// there is none.
func NewPace(w http.ResponseWriter, r *http.Request, conn net.Conn, of Patience) *Pace {
	return &Pace{body: r.Body, conn: conn, of: of, start: time.Since(epoch), control: *http.NewResponseController(w)}
}

// epoch is where times that are kept as numbers begin.
var epoch = time.Now()

// setEvery spares a system call for each read of a fast body.
const setEvery = 500 * time.Millisecond

func (p *Pace) Read(b []byte) (int, error) {
	began := time.Since(epoch)
	if p.set == 0 || began-p.set >= min(setEvery, p.of.Grace/4) {
		earned := p.of.Grace + time.Duration(p.n.Load())*time.Second/time.Duration(p.of.Rate)
		silent := time.Duration(p.silent.Load())
		if err := p.deadline(epoch.Add(min(began-silent+earned, p.start+p.of.Timeout))); err != nil {
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
	p.waits.Store(0) // first: a look in between may count too little, not twice
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
func (p *Pace) silence(now time.Time) time.Duration {
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
func (p *Pace) deadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return nil
	}
	return p.setDeadline(t)
}

// Done lifts the deadline of a body that was read to its end. It would end the
// request's context while the records are being published. late says that it has
// done so: the body was cut off at the very moment of its end.
func (p *Pace) Done() (late bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut, p.setDeadline(time.Time{})
}

func (p *Pace) setDeadline(t time.Time) error {
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
func (p *Pace) slow(now time.Time) bool {
	silent := p.silence(now)
	return silent >= newcomer && float64(p.n.Load()) < crowdedRate*silent.Seconds()
}

// cutOff ends the reading of the body.
func (p *Pace) cutOff(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	_ = p.setDeadline(now.Add(-time.Second)) // fails only when the connection is gone
}

func (p *Pace) IsCut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}
