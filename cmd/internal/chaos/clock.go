package main

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

// operator runs the commands of sluice, on a machine of their own.
const operator = "operator"

// envClock names the file that says by how many seconds a program's clock is off.
const envClock = "CHAOS_CLOCK"

// The programs of a run are built with another time.Now: what it says of the wall
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

// Build compiles the programs into the folder bin, with a clock that can be
// stepped.
func Build(ctx context.Context, bin string) error {
	dir, err := os.MkdirTemp("", "sluice-clock-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := writeClock(ctx, dir)
	if err != nil {
		return fmt.Errorf("prepare a clock that steps: %w", err)
	}
	// Every package is compiled anew, so once for the three of them.
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-pgo=off", "-overlay", overlay, "-o", bin+"/",
		"sluice/cmd/api", "sluice/cmd/ingester", "sluice/cmd/sluice")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return nil
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

// clock is the file by which the clock of a machine is stepped.
func (s *stage) clock(machine string) string { return filepath.Join(s.dir, "clocks", machine) }

// withClock is the environment of a program on a machine.
func (s *stage) withClock(machine string) []string {
	return append(programtest.Environ(), envClock+"="+s.clock(machine))
}

// setClock steps the clock of a machine: from now on it is off by this much.
func (s *stage) setClock(machine string, off time.Duration) error {
	file := s.clock(machine)
	text := strconv.FormatInt(int64(off/time.Second), 10)
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file) // a reader never sees half a number
}

// step steps the clock of a machine, and back after the hold.
func (b *breaker) step(ctx context.Context, f fault) {
	b.journal.note("%v", f)
	b.journal.count(func(c *Counts) { c.Steps++ })
	if err := b.setClock(f.target, f.step); err != nil {
		b.journal.note("%v: %v", f, err)
		return
	}
	if f.target == operator {
		b.operate(ctx, "the lanes, by that clock", func(*Counts) {}, append([]string{"lanes", "make"}, b.streams()...)...)
	}
	sleep(ctx, f.hold)
	if err := b.setClock(f.target, 0); err != nil {
		b.journal.note("%v: %v", f, err)
	}
}
