package ingest

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/record"
)

// health is how a loop fares: what failed last, how often in a row, and what that
// means for the next try.
type health struct {
	loop  string // its name: lane 3, or applying changes
	retry Config
	out   *slog.Logger
	gauge prometheus.Gauge // of its state

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
	isHalted       // somebody has to mend something
)

// haltError is what only a person can mend.
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

	var mend *haltError
	var store *record.StoreError
	stop := errors.As(err, &mend) || errors.Is(err, record.ErrGap) ||
		errors.Is(err, record.ErrFull) // no room for a dead letter: only a person makes some
	isStore := errors.As(err, &store)
	if !isStore || !store.Unreached {
		h.cut = time.Time{}
	} else if h.cut.IsZero() {
		h.cut = time.Now()
	}
	if isStore {
		h.unknowns++
		if store.Class != record.ClassUnknown {
			h.unknowns = 0
		}
		stop = stop || store.Class == record.ClassHalt || h.unknowns >= h.retry.Unknowns
	}
	if stop {
		h.set(isHalted)
		h.out.ErrorContext(spanOf(err), h.loop+" halted: it goes on once this is mended", "error", err, "failures", h.failures)
		return jitter(h.retry.HaltProbe)
	}
	h.set(retrying)
	pause := h.retry.RetryMost
	if n := h.failures - 1; n < 20 {
		pause = min(pause, h.retry.RetryFirst<<n)
	}
	pause = jitter(pause)
	h.out.WarnContext(spanOf(err), h.loop+" failed, trying again", "error", err, "failures", h.failures, "pause", pause)
	return pause
}

// isCutOff says that the warehouse could not be reached for long.
func (h *health) isCutOff() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.cut.IsZero() && time.Since(h.cut) >= h.retry.GiveUp
}

// recovered says that something went through, or that nothing waits.
func (h *health) recovered() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failure != nil {
		h.out.Info(h.loop+" goes on", "failures", h.failures)
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

// jitter keeps processes that failed together from trying together.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
