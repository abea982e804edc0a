package load

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Usage is the resource usage of a process during a run.
type Usage struct {
	Name                 string  `json:"name"`
	PID                  int     `json:"pid"`
	CPUSeconds           float64 `json:"cpu_seconds"`             // from the first request to Report.MeasuredUntil
	CPUSecondsPerMillion float64 `json:"cpu_seconds_per_million"` // per million acknowledged records; 0 if none
	RSSBytes             int64   `json:"rss_bytes"`               // resident memory at the end
	PeakRSSBytes         int64   `json:"peak_rss_bytes"`          // highest of ten samples a second
	Error                string  `json:"error,omitempty"`         // why figures are missing (not on Linux) or end early
}

// sample is the usage of a process since its start.
type sample struct {
	cpu time.Duration
	rss int64 // bytes
}

// CPUTime returns the CPU time of a process so far.
func CPUTime(pid int) (time.Duration, error) {
	now, err := measure(pid)
	return now.cpu, err
}

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
			w.err = err // earlier samples are kept
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

// tick is the unit of CPU time in /proc: USER_HZ is 100 on all platforms of Go.
const tick = 10 * time.Millisecond

const sampleEvery = 100 * time.Millisecond

// measure reads /proc/<pid>/stat of Linux, see proc_pid_stat(5).
func measure(pid int) (sample, error) {
	if runtime.GOOS != "linux" {
		return sample{}, errors.New("processor time and memory are measured on Linux only")
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return sample{}, err
	}
	// The program's name is in parentheses and may contain any character.
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	const state, userTime, systemTime, residentPages = 3, 14, 15, 24
	if len(fields) <= residentPages-state {
		return sample{}, fmt.Errorf("/proc/%d/stat is too short", pid)
	}
	if fields[0][0] == 'Z' {
		return sample{}, fmt.Errorf("process %d has ended", pid)
	}
	var values [3]int64
	for i, field := range []int{userTime, systemTime, residentPages} {
		if values[i], err = strconv.ParseInt(string(fields[field-state]), 10, 64); err != nil {
			return sample{}, fmt.Errorf("/proc/%d/stat field %d: %w", pid, field, err)
		}
	}
	return sample{cpu: time.Duration(values[0]+values[1]) * tick, rss: values[2] * int64(os.Getpagesize())}, nil
}
