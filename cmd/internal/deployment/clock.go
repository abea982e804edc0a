package deployment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sluice/pkg/programtest"
)

// Operator is the machine that runs commands. Its clock can be stepped too.
const Operator = "operator"

// envClock names the file with the offset of a program's clock, in seconds.
const envClock = "DEPLOYMENT_CLOCK"

// steppedClock is compiled into package time by BuildWithClocks. It steps the wall clock,
// as a time server does, but not the monotonic clock. The product's code is unchanged.
const steppedClock = `package time

import (
	"sync/atomic"
	"syscall"
)

// stepped is the offset of the wall clock, in seconds.
var stepped atomic.Int64

func init() {
	file, ok := syscall.Getenv("` + envClock + `")
	if !ok {
		return
	}
	readStep(file) // commands are short
	go func() {
		for {
			Sleep(50 * Millisecond)
			readStep(file)
		}
	}()
}

// readStep reads a decimal number; without one nothing changes.
func readStep(file string) {
	fd, err := syscall.Open(file, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	var text [32]byte
	n, err := syscall.Read(fd, text[:])
	syscall.Close(fd)
	if err != nil || n < 1 {
		return
	}
	sign, digits := int64(1), text[:n]
	if digits[0] == '-' {
		sign, digits = -1, digits[1:]
	}
	var by int64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return
		}
		by = by*10 + int64(c-'0')
	}
	stepped.Store(sign * by)
}
`

// BuildWithClocks builds programs into the folder bin. SetClock steps their clocks.
func BuildWithClocks(ctx context.Context, bin string) error {
	dir, err := os.MkdirTemp("", "sluice-clock-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := writeClock(ctx, dir)
	if err != nil {
		return fmt.Errorf("prepare a clock that steps: %w", err)
	}
	return programtest.BuildWith(ctx, bin, "clocks", "-trimpath", "-pgo=off", "-overlay", overlay)
}

// writeClock writes the changed files of package time into dir, and returns the overlay
// for go build -overlay.
func writeClock(ctx context.Context, dir string) (overlay string, err error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	library := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	original, err := os.ReadFile(filepath.Join(library, "time.go"))
	if err != nil {
		return "", err
	}
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if bytes.Count(original, []byte(now)) != 1 {
		return "", errors.New("time.Now of this Go version has another form: adapt clock.go")
	}
	files := map[string][]byte{
		"time.go":    bytes.Replace(original, []byte(now), []byte(now+"\tsec += stepped.Load()\n"), 1),
		"stepped.go": []byte(steppedClock),
	}
	replace := map[string]string{}
	for name, text := range files {
		replace[filepath.Join(library, name)] = filepath.Join(dir, name)
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return "", err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, list, 0o600)
}

func (d *Deployment) clock(machine string) string { return d.path("clocks/" + machine) }

// withClock returns the environment of a program on a machine.
func (d *Deployment) withClock(machine string) []string {
	return append(programtest.Environ(), envClock+"="+d.clock(machine))
}

// SetClock sets the clock offset of a machine: a process or the Operator.
func (d *Deployment) SetClock(machine string, off time.Duration) error {
	file := d.clock(machine)
	text := strconv.FormatInt(int64(off/time.Second), 10)
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file) // atomic: readers get a whole number
}
