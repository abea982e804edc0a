package ops

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Heartbeat proves that a loop makes progress. A loop that waits beats too, as long as it
// would notice work.
type Heartbeat struct {
	name  string
	stall time.Duration
	last  atomic.Int64 // monotonic, ns since the epoch of health; retired once the loop has ended
	now   func() int64
}

const retired = -1

func (h *Heartbeat) Beat() { h.last.Store(h.now()) }

// Retire ends the heartbeat of a loop that has returned.
func (h *Heartbeat) Retire() { h.last.Store(retired) }

// silence is the time since the last beat.
func (h *Heartbeat) silence() time.Duration {
	last := h.last.Load()
	if last == retired {
		return 0
	}
	return time.Duration(h.now() - last)
}

// check is one precondition of readiness.
type check struct {
	name string
	run  func(context.Context) error
}

// health holds heartbeats and checks; safe for concurrent use.
type health struct {
	mu     sync.Mutex
	beats  []*Heartbeat
	checks []check
	epoch  time.Time
}

// finding is one reason to be not alive or not ready.
type finding struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// heartbeat adds a heartbeat and replaces one of the same name, so that a restarted loop,
// such as a lane taken again, is listed once.
func (h *health) heartbeat(name string, stall time.Duration) *Heartbeat {
	b := &Heartbeat{name: name, stall: stall, now: func() int64 { return int64(time.Since(h.epoch)) }}
	b.Beat()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beats = slices.DeleteFunc(h.beats, func(other *Heartbeat) bool { return other.name == name })
	h.beats = append(h.beats, b)
	return b
}

func (h *health) addCheck(name string, run func(context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(h.checks, check{name, run})
}

// stalled lists the heartbeats without a beat within their limit.
func (h *health) stalled() []finding {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := []finding{}
	for _, b := range h.beats {
		if s := b.silence(); s > b.stall {
			found = append(found, finding{b.name, fmt.Sprintf("no progress for %s, expected every %s", s.Round(time.Millisecond), b.stall)})
		}
	}
	return found
}

// missing runs all checks concurrently and lists those that failed, in the order they were
// added. A check that exceeds timeout has failed.
func (h *health) missing(ctx context.Context, timeout time.Duration) []finding {
	h.mu.Lock()
	checks := h.checks
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	results := make([]chan error, len(checks))
	for i, c := range checks {
		results[i] = make(chan error, 1)
		go func() { results[i] <- c.run(ctx) }()
	}
	found := []finding{}
	for i, c := range checks {
		err := await(ctx, results[i], timeout)
		if err != nil {
			found = append(found, finding{c.name, err.Error()})
		}
	}
	return found
}

// await waits for the result of a check. A result that is already there counts even after
// the timeout.
func await(ctx context.Context, result <-chan error, timeout time.Duration) error {
	select {
	case err := <-result:
		return err
	default:
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("no answer within %s", timeout)
	}
}
