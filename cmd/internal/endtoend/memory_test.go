package endtoend

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"sluice/pkg/fatal"
)

const mib = 1 << 20

// peak returns the peak resident memory of the process, in bytes.
func (p *process) peak() int64 {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	fatal.When(p.t, err != nil, "read the peak memory from /proc: %v", err)
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	fatal.When(p.t, found == nil, "no VmHWM in:\n%s", status)
	kb, err := strconv.ParseInt(string(found[1]), 10, 64)
	fatal.If(p.t, err)
	return kb << 10
}

// hugeBody returns records of about size bytes, up to total. Less than half of each is
// incompressible.
func hugeBody(seed uint64, size, total int) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	body := []byte{'['}
	for i := 0; len(body)+size < total; i++ {
		if i > 0 {
			body = append(body, ',')
		}
		begun := len(body)
		body = fmt.Appendf(body, `{"id":"%d-%d","valueType":"JOB","value":{"errorMessage":"`, seed, i)
		for len(body) < begun+size*3/5 {
			body = append(body, "the same words again and again, "...)
		}
		for len(body) < begun+size-len(`"}}`) {
			body = append(body, letters[rng.IntN(len(letters))])
		}
		body = append(body, `"}}`...)
	}
	return append(body, ']')
}

// TestTheMemoryOfTheIngesterIsBounded: huge records wait while ClickHouse is stopped, and
// then a long backlog is drained.
func TestTheMemoryOfTheIngesterIsBounded(t *testing.T) {
	const bound = 512 * mib
	s := newStack(t)
	_, engine, _, ingester := s.apart()
	before := ingester.peak()

	engine.signal(syscall.SIGSTOP)
	posted := 0
	for seed := range uint64(20) {
		size := []int{4*mib - 200, 1 * mib, 400}[seed%3]
		body := hugeBody(seed, size, 15*mib)
		body = bytes.ReplaceAll(body, []byte(`"errorMessage":"`), []byte([]string{`"errorMessage":"`, `"variables":"`, `"unknown":"`, `"customHeaders":"`}[seed%4]))
		eventually(t, 10*time.Second, func() error { return wantOK(s.post(body)) })
		posted += bytes.Count(body, []byte(`{"id"`))
	}
	paused := ingester.peak()
	engine.signal(syscall.SIGCONT)
	s.eventuallyQuery(60*time.Second, "SELECT count(), uniqExact(id) FROM flow.records", fmt.Sprintf("%d\t%d", posted, posted))

	t.Logf("peak %d MiB, %d while ClickHouse was stopped, %d before; %d records", ingester.peak()/mib, paused/mib, before/mib, posted)
	if got := ingester.peak(); got > bound {
		t.Errorf("the ingester took %d MiB at its peak, want at most %d", got/mib, bound/mib)
	}
}
