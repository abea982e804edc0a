//go:build !linux

package load

import (
	"fmt"
	"os/exec"
	"strconv"
	"time"
)

// sampleEvery is the time between two samples: each starts a program.
const sampleEvery = 500 * time.Millisecond

// measure asks ps, which macOS and the BSDs have.
func measure(pid int) (sample, error) {
	out, err := exec.Command("ps", "-o", "time=,rss=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return sample{}, fmt.Errorf("CPU and memory of process %d are not available: %w", pid, err)
	}
	return parsePS(string(out))
}
