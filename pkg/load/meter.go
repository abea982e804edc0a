package load

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"sync"
	"time"
)

// Usage is what a process used during a run.
type Usage struct {
	Name                 string  `json:"name"`
	PID                  int     `json:"pid"`
	CPUSeconds           float64 `json:"cpu_seconds"`             // from the first request to Report.MeasuredUntil
	CPUSecondsPerMillion float64 `json:"cpu_seconds_per_million"` // per million records acknowledged; 0 when there were none
	RSSBytes             int64   `json:"rss_bytes"`               // resident memory at the end
	PeakRSSBytes         int64   `json:"peak_rss_bytes"`          // highest of the samples taken during the run, ten a second on Linux and two elsewhere
	Error                string  `json:"error,omitempty"`         // why the figures are missing or end early
}

// sample is what a process has used since it started, and holds now.
type sample struct {
	cpu time.Duration
	rss int64 // bytes
}

// CPUTime is the processor time that a process has used so far.
func CPUTime(pid int) (time.Duration, error) {
	now, err := measure(pid)
	return now.cpu, err
}

// meter watches processes.
type meter struct {
	mu      sync.Mutex
	watched []*watched
}

type watched struct {
	name        string
	pid         int
	first, last sample
	peak        int64
	err         error
}

// newMeter takes the first sample of the processes, and of this one.
func newMeter(pids map[string]int) *meter {
	m := &meter{watched: []*watched{{name: "load", pid: os.Getpid()}}}
	for name, pid := range pids {
		m.watched = append(m.watched, &watched{name: name, pid: pid})
	}
	slices.SortFunc(m.watched[1:], func(a, b *watched) int { return cmp.Compare(a.name, b.name) })
	for _, w := range m.watched {
		w.first, w.err = measure(w.pid)
		w.last, w.peak = w.first, w.first.rss
	}
	return m
}

func (m *meter) run(done <-chan struct{}) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			m.look()
			return
		case <-tick.C:
			m.look()
		}
	}
}

func (m *meter) look() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.watched {
		if w.err != nil {
			continue
		}
		now, err := measure(w.pid)
		if err == nil && now.cpu < w.last.cpu {
			err = errors.New("another process has this pid now")
		}
		if err != nil {
			w.err = err // what was seen before stands
			continue
		}
		w.last, w.peak = now, max(w.peak, now.rss)
	}
}

func (m *meter) usage(records int64) []Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []Usage
	for _, w := range m.watched {
		u := Usage{Name: w.name, PID: w.pid, CPUSeconds: (w.last.cpu - w.first.cpu).Seconds(), RSSBytes: w.last.rss, PeakRSSBytes: w.peak}
		if records > 0 {
			u.CPUSecondsPerMillion = u.CPUSeconds / float64(records) * 1e6
		}
		if w.err != nil {
			u.Error = w.err.Error()
		}
		all = append(all, u)
	}
	return all
}
