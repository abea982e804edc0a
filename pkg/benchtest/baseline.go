package benchtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// File is where a package keeps its baseline.
const File = "testdata/baseline.txt"

// Baseline fails t when a benchmark of the package under test that the pattern
// matches allocates more than File says, or is missing on one of the two sides.
// With update it writes File instead.
//
// The benchmarks run apart from the tests, in a process in which nothing else
// allocates: on one processor and without garbage collection, so that pools
// lose nothing, and each so many operations long, so that what is allocated now
// and then falls due equally often. Of several runs the least counts: what the
// runtime does beside it only adds. More than one are made where the first says that
// something is worse. Times are logged and not judged.
func Baseline(t *testing.T, pattern string, operations int, update bool) {
	t.Helper()
	kept, err := os.ReadFile(File)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	out := run(t, pattern, operations, 1)
	now := Parse(out)
	worse := Compare(Parse(kept), now, operations)
	if len(worse) > 0 || update {
		out = append(out, run(t, pattern, operations, 3)...)
		now = Parse(out)
		worse = Compare(Parse(kept), now, operations)
	}
	t.Logf("%s", out)
	if len(now) == 0 {
		t.Fatalf("no benchmark matches %s", pattern)
	}
	if update {
		if err := os.MkdirAll(filepath.Dir(File), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(File, Format(packageOf(out), now), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, sentence := range worse {
		t.Error(sentence)
	}
	if len(worse) > 0 {
		t.Logf("if that is as it should be, write a new baseline: go test %s -run '^%s$' -update", packageOf(out), t.Name())
	}
}

func run(t *testing.T, pattern string, operations, times int) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, program, "-test.run=^$", "-test.bench="+pattern,
		fmt.Sprintf("-test.benchtime=%dx", operations), fmt.Sprintf("-test.count=%d", times), "-test.cpu=1")
	cmd.Env = append(os.Environ(), "GOGC=off", "GOMEMLIMIT=2GiB")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("run the benchmarks: %v\n%s%s", err, out, &stderr)
	}
	return out
}

// Compare says what got worse, one sentence each. The figures of now are of so
// many operations.
func Compare(kept, now map[string]Figures, operations int) (worse []string) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if _, known := kept[name]; !known {
			worse = append(worse, fmt.Sprintf("%s is not in %s", name, File))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(kept)) {
		figures, ran := now[name]
		if !ran {
			worse = append(worse, fmt.Sprintf("%s is in %s, but did not run", name, File))
			continue
		}
		for _, unit := range slices.Sorted(maps.Keys(kept[name])) {
			was := kept[name][unit]
			is, told := figures[unit]
			if !told {
				worse = append(worse, fmt.Sprintf("%s tells no %s any more", name, unit))
			} else if most := allowed(unit, was, operations); is > most {
				worse = append(worse, fmt.Sprintf("%s: %v %s, the baseline is %v and at most %v is let through", name, is, unit, was, most))
			}
		}
	}
	return worse
}

// allowed is how much a figure may be where it was `was`. Allocations may be a
// fiftieth more, so that where there were less than fifty every one counts.
// Bytes may be a twentieth more, and a run may have a page of 4 KiB from the
// runtime.
func allowed(unit string, was float64, operations int) float64 {
	switch unit {
	case "allocs/op":
		return was + was/50
	case "B/op":
		return was + was/20 + 4096/float64(operations)
	default:
		return was + was/20
	}
}
