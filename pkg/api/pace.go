package api

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// pace reads a body and cuts off clients that keep us waiting: after a grace
// the body must have come at a certain rate, and it must end in time. Where
// others wait for the memory it holds, it must come faster.
type pace struct {
	body  io.Reader
	cfg   *Config
	start time.Time
	n     atomic.Int64 // bytes read
	set   time.Time    // when the deadline was set last

	mu      sync.Mutex // of the deadline
	control *http.ResponseController
	cut     bool
}

func newPace(w http.ResponseWriter, r *http.Request, cfg *Config) *pace {
	return &pace{body: r.Body, cfg: cfg, start: time.Now(), control: http.NewResponseController(w)}
}

// setEvery spares a system call for each read of a fast body.
const setEvery = 500 * time.Millisecond

func (p *pace) Read(b []byte) (int, error) {
	if now := time.Now(); now.Sub(p.set) >= min(setEvery, p.cfg.BodyGrace/4) {
		earned := p.cfg.BodyGrace + time.Duration(p.n.Load())*time.Second/time.Duration(p.cfg.BodyRate)
		if err := p.deadline(p.start.Add(min(earned, p.cfg.BodyTimeout))); err != nil {
			return 0, err
		}
		p.set = now
	}
	n, err := p.body.Read(b)
	p.n.Add(int64(n))
	return n, err
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
	// newcomer is how long a body may take before its rate is looked at.
	newcomer = 100 * time.Millisecond
)

// slow tells whether others should not wait for the body. The lock of the half
// that its memory belongs to is held, here and when start moves.
func (p *pace) slow(now time.Time) bool {
	took := now.Sub(p.start)
	return took >= newcomer && float64(p.n.Load()) < crowdedRate*took.Seconds()
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
