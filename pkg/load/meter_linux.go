package load

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// tick is the unit of CPU time in /proc: USER_HZ is 100 on every platform Go
// runs on.
const tick = 10 * time.Millisecond

// sampleEvery is the time between two samples: reading a file costs next to
// nothing.
const sampleEvery = 100 * time.Millisecond

// measure reads /proc/<pid>/stat, see proc_pid_stat(5).
func measure(pid int) (sample, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return sample{}, err
	}
	// The name of the program is in parentheses and may hold anything.
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
