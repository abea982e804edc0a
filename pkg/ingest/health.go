package ingest

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/flow"
)

// health is how a loop fares: what failed last, how often in a row, and what that
// means for the next try.
type health struct {
	loop  string // its name: lane 3, or applying changes
	cfg   Config
	log   *slog.Logger
	gauge prometheus.Gauge // of its state
	beat  func()           // says that the loop turns

	mu       sync.Mutex
	cut      time.Time // since when the warehouse cannot be reached; zero while it can
	state    state
	failures int   // in a row
	unknowns int   // of those, in a row, of no known class
	failure  error // the last one; nil when all is well
}

// state is what a loop does.
type state int

const (
	running  state = iota
	retrying       // something fails that should pass
	isHalted       // an operator has to fix something
)

// haltError is what only an operator can fix.
type haltError struct{ err error }

func (e *haltError) Error() string { return e.err.Error() }
func (e *haltError) Unwrap() error { return e.err }

func halt(format string, args ...any) error { return &haltError{fmt.Errorf(format, args...)} }

// failed decides what a failure means, and returns how long to wait.
func (h *health) failed(err error) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures++
	h.failure = err

	var fix *haltError
	var store *flow.StoreError
	stop := errors.As(err, &fix) || errors.Is(err, flow.ErrGap) ||
		errors.Is(err, flow.ErrFull) // no room for a dead letter: only an operator makes some
	isStore := errors.As(err, &store)
	if !isStore || !store.Unreached {
		h.cut = time.Time{}
	} else if h.cut.IsZero() {
		h.cut = time.Now()
	}
	if isStore {
		h.unknowns++
		if store.Class != flow.ClassUnknown {
			h.unknowns = 0
		}
		stop = stop || store.Class == flow.ClassHalt || h.unknowns >= h.cfg.Unknowns
	}
	if stop {
		h.set(isHalted)
		h.log.ErrorContext(spanOf(err), h.loop+" halted: probing until fixed", "error", err, "failures", h.failures)
		return h.jitter(h.cfg.HaltProbe)
	}
	h.set(retrying)
	pause := h.cfg.RetryMax
	if n := h.failures - 1; n < 20 {
		pause = min(pause, h.cfg.RetryFirst<<n)
	}
	pause = h.jitter(pause)
	h.log.WarnContext(spanOf(err), h.loop+" failed, retrying", "error", err, "failures", h.failures, "pause", pause)
	return pause
}

// isCutOff says that the warehouse could not be reached for long.
func (h *health) isCutOff() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.cut.IsZero() && time.Since(h.cut) >= h.cfg.GiveUp
}

// recovered says that something went through, or that nothing is left to do.
func (h *health) recovered() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failure != nil {
		h.log.Info(h.loop+" resumes", "failures", h.failures)
	}
	h.failures, h.unknowns, h.failure, h.cut = 0, 0, nil, time.Time{}
	h.set(running)
}

func (h *health) set(s state) {
	h.state = s
	h.gauge.Set(float64(s))
}

// breakerAfter is how many failures in a row make a loop not ready.
const breakerAfter = 5

// err is what keeps the loop from its work, nil when nothing does.
func (h *health) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.state == isHalted:
		return fmt.Errorf("%s is halted: %w", h.loop, h.failure)
	case h.failures >= breakerAfter:
		return fmt.Errorf("%s has failed %d times in a row: %w", h.loop, h.failures, h.failure)
	}
	return nil
}

// jitter keeps processes that failed together from retrying together.
func (h *health) jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(h.cfg.Random()%uint64(d/2+1))
}
