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

// health is the state of a loop: its last failure, consecutive failures, and the pause before the next attempt.
type health struct {
	loop  string // lane 3, or applying changes
	cfg   Config
	log   *slog.Logger
	gauge prometheus.Gauge // of the state
	beat  func()           // the heartbeat

	mu       sync.Mutex
	cut      time.Time // since when the warehouse is unreachable; zero: reachable
	state    state
	failures int   // consecutive
	unknowns int   // consecutive, of unknown class
	failure  error // the last one; nil: none
}

type state int

const (
	running  state = iota
	retrying       // a temporary failure
	isHalted       // needs an operator
)

// haltError is a failure that only an operator can fix.
type haltError struct{ err error }

func (e *haltError) Error() string { return e.err.Error() }
func (e *haltError) Unwrap() error { return e.err }

func halt(format string, args ...any) error { return &haltError{fmt.Errorf(format, args...)} }

// failed classifies a failure, and returns the pause before the next attempt.
func (h *health) failed(err error) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures++
	h.failure = err

	var fix *haltError
	var store *flow.StoreError
	stop := errors.As(err, &fix) || errors.Is(err, flow.ErrGap) ||
		errors.Is(err, flow.ErrFull) // no space for a dead letter: only an operator frees some
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
		h.log.Error(h.loop+" halted: probing until fixed", "error", err, "failures", h.failures)
		return h.jitter(h.cfg.HaltProbe)
	}
	h.set(retrying)
	pause := h.cfg.RetryMax
	if n := h.failures - 1; n < 20 {
		pause = min(pause, h.cfg.RetryFirst<<n)
	}
	pause = h.jitter(pause)
	h.log.Warn(h.loop+" failed, retrying", "error", err, "failures", h.failures, "pause", pause)
	return pause
}

// isCutOff reports whether the warehouse has been unreachable for Config.GiveUp.
func (h *health) isCutOff() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.cut.IsZero() && time.Since(h.cut) >= h.cfg.GiveUp
}

// recovered resets the failures after a success, or when idle.
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

// breakerAfter is the number of consecutive failures that make a loop not ready.
const breakerAfter = 5

// err is the error that blocks the loop, or nil.
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

// jitter spreads the retries of processes that failed together.
func (h *health) jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(h.cfg.Random()%uint64(d/2+1))
}
