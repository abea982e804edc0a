package ops

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Heartbeat is how a loop shows that it still turns. A loop that waits beats
// too, as long as it would notice work.
type Heartbeat struct {
	name  string
	stall time.Duration
	last  atomic.Int64 // monotonic, nanoseconds since the epoch of health; retired when the loop has ended
	now   func() int64
}

const retired = -1

// Beat says that the loop turned once more.
func (h *Heartbeat) Beat() { h.last.Store(h.now()) }

// Retire says that the loop has ended on purpose and beats no more.
func (h *Heartbeat) Retire() { h.last.Store(retired) }

// silence is how long ago the last beat was.
func (h *Heartbeat) silence() time.Duration {
	last := h.last.Load()
	if last == retired {
		return 0
	}
	return time.Duration(h.now() - last)
}

// check is one thing the process needs to do its work.
type check struct {
	name string
	run  func(context.Context) error
}

// health keeps the heartbeats and checks; safe for concurrent use.
type health struct {
	mu     sync.Mutex
	beats  []*Heartbeat
	checks []check
	epoch  time.Time
}

// finding is one reason not to be alive or ready.
type finding struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// heartbeat adds a heartbeat in place of one of the same name, so that a loop
// that is started again, such as a lane that comes back, is listed once.
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

// stalled names the heartbeats that have been silent for too long.
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

// missing runs every check at once and names those that failed, in the order
// they were added. A check that does not return in time counts as failed.
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

// await waits for the result of a check. One that came in time counts, also
// when another check has used the time up.
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
