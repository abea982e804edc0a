package simulate_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sluice/cmd/internal/simulate"
)

func run(t *testing.T, o simulate.Options) (r simulate.Result) {
	synctest.Test(t, func(*testing.T) { r = simulate.Run(o, synctest.Wait) })
	return r
}

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// TestOneSeed runs one seed. With SEED in the environment it prints the trace and the logs.
func TestOneSeed(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	o := simulate.Options{Seed: uint64(number("SEED", 1))}
	if shown := os.Getenv("SEED") != ""; shown {
		o.Trace, o.Log = true, slog.NewTextHandler(os.Stdout, nil)
	}
	r := run(t, o)
	for _, line := range r.Trace {
		fmt.Println(line)
	}
	t.Logf("seed %d: %v virtual, %d grants, %d records, %v", r.Seed, r.Virtual, r.Grants, r.Records, r.Rare)
	if len(r.Failures) > 0 {
		t.Error(r.Failures)
	}
}

// TestTheCanaryIsFound: the oracle finds the lost row, unless its client happens to resend
// the record.
func TestTheCanaryIsFound(t *testing.T) {
	const seeds = 6
	found := 0
	for seed := range uint64(seeds) {
		if r := run(t, simulate.Options{Seed: seed, Canary: true}); len(r.Failures) > 0 {
			found++
		}
	}
	if found < seeds/2 {
		t.Errorf("%d histories lost a row, %d report it", seeds, found)
	}
}

// keep writes the trace and the failures to a file.
func keep(t *testing.T, path string, r simulate.Result, said *bytes.Buffer) {
	for _, line := range r.Trace {
		fmt.Fprintln(said, line)
	}
	for _, line := range r.Failures {
		fmt.Fprintln(said, line)
	}
	if err := os.WriteFile(path, said.Bytes(), 0o600); err != nil {
		t.Error(err)
	}
}

// longRun is the number of histories that reach every rare state.
const longRun = 5000

func TestHistories(t *testing.T) {
	seeds, first, traces := number("SEEDS", 200), number("FIRST", 1), os.Getenv("TRACES")
	var next atomic.Int64
	next.Store(int64(first))
	var mu sync.Mutex
	rare, ran, failed, grants := map[string]int{}, 0, 0, 0
	var stop atomic.Bool
	begun := time.Now()
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for {
				seed := int(next.Add(1) - 1)
				if seed >= first+seeds || stop.Load() {
					return
				}
				said := &bytes.Buffer{}
				o := simulate.Options{Seed: uint64(seed), Trace: traces != "", Canary: os.Getenv("CANARY") != ""}
				if o.Trace {
					o.Log = slog.NewTextHandler(said, nil)
				}
				r := run(t, o)
				if o.Trace && len(r.Failures) > 0 {
					keep(t, filepath.Join(traces, strconv.Itoa(seed)+".txt"), r, said)
				}
				mu.Lock()
				ran++
				grants += r.Grants
				for name, n := range r.Rare {
					rare[name] += n
				}
				if len(r.Failures) > 0 {
					failed++
					stop.Store(os.Getenv("STOP") != "") // one is enough
					if failed < 30 {
						t.Errorf("seed %d: %v", seed, r.Failures)
					}
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	took := time.Since(begun)
	t.Logf("%d histories in %v, %.1f seeds/s, %d calls granted, %d failed", ran, took, float64(ran)/took.Seconds(), grants, failed)
	for _, name := range slices.Sorted(maps.Keys(rare)) {
		t.Logf("%8d %s", rare[name], name)
	}
	for _, name := range simulate.RareStates {
		if rare[name] == 0 && ran >= longRun {
			t.Errorf("%d histories did not reach: %s", ran, name)
		}
	}
}

// TestSeedsRepeat: on one processor a seed repeats its history, call for call.
func TestSeedsRepeat(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	seeds, others := number("REPEATS", 10), 0
	for i := range seeds {
		o := simulate.Options{Seed: uint64(number("FIRST", 1000) + i), Trace: true}
		first, again := run(t, o).Trace, run(t, o).Trace
		for j := range min(len(first), len(again)) {
			if first[j] != again[j] {
				others++
				from, to := max(0, j-12), min(j+5, len(first), len(again))
				t.Logf("seed %d, at call %d:\n%s\nthen\n%s\nor\n%s", o.Seed, j, strings.Join(first[from:j], "\n"), strings.Join(first[j:to], "\n"), strings.Join(again[j:to], "\n"))
				break
			}
		}
	}
	if others > 0 {
		t.Errorf("%d of %d seeds are not repeatable", others, seeds)
	}
}
