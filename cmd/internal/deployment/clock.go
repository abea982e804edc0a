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

// Operator is the machine on which Sluice runs commands: it has a clock too.
const Operator = "operator"

// envClock names the file that says by how many seconds a program's clock is off.
const envClock = "DEPLOYMENT_CLOCK"

// BuildWithClocks compiles another time.Now into the programs: what it says of the wall
// clock can be stepped, as an administrator or a time server steps the clock of a
// machine, while the monotonic clock goes on. Only the standard library of these
// programs is another; the product knows nothing of it.
const steppedClock = `package time

import (
	"sync/atomic"
	"syscall"
)

// stepped is what the wall clock is off by, in seconds.
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

// BuildWithClocks puts programs into the folder bin whose clocks SetClock steps.
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

// writeClock writes the package time of the programs into dir, and returns the
// file that says what it replaces.
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
		return "", errors.New("time.Now of this Go is written in another way: look at clock.go")
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

// withClock is the environment of a program on a machine.
func (d *Deployment) withClock(machine string) []string {
	return append(programtest.Environ(), envClock+"="+d.clock(machine))
}

// SetClock steps the clock of a machine, which is a process or the Operator: from now
// on it is off by this much.
func (d *Deployment) SetClock(machine string, off time.Duration) error {
	file := d.clock(machine)
	text := strconv.FormatInt(int64(off/time.Second), 10)
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file) // a reader never sees half a number
}
