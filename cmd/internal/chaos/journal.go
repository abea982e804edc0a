package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// journal tells what happened when, and counts it.
type journal struct {
	began time.Time

	mu     sync.Mutex
	out    io.Writer
	counts Counts
}

// Counts is what was done to the services, and what they did by themselves.
type Counts struct {
	Kills     int // services killed while they ran
	Stops     int // services that stood still for a while
	Restarts  int // services stopped gracefully
	Cuts      int // links cut, delayed or stalled
	Fills     int // disks filled
	Wipes     int // NATS servers that lost their data
	Lanes     int // lanes added
	Spreads   int // sources moved to other lanes
	Steps     int // clocks stepped
	Freezes   int // apis that stood still in the middle of a publish for longer than the window
	FullLanes int // lanes that had no room for a while
	Crashes   int // services that ended unasked
	Unclean   int // graceful stops that took too long or did not exit with 0
	Abandoned int // records given up by their client
}

func (j *journal) note(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	elapsed := time.Since(j.began).Round(time.Millisecond)
	fmt.Fprintf(j.out, "%10v  %s\n", elapsed, fmt.Sprintf(format, args...))
}

// count changes the counts under the lock.
func (j *journal) count(f func(*Counts)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f(&j.counts)
}

func (j *journal) sum() Counts {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.counts
}
