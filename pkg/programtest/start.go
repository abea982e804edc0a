package programtest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// Start starts a program for the time of the test. At its end it is stopped, which must
// succeed, or killed.
func Start(t testing.TB, name string, cmd *exec.Cmd, graceful bool) *Process {
	t.Helper()
	p := &Process{Name: name, Log: filepath.Join(t.TempDir(), name+".log"), Cmd: cmd}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !graceful {
			p.Kill()
		} else if err := p.Stop(); err != nil || p.Status() != 0 {
			t.Errorf("%s ended with status %d: %v", name, p.Status(), err)
		}
		p.ShowIfFailed(t)
	})
	return p
}

// keep writes a file into the folder of artifacts, if there is one.
func keep(t testing.TB, name, content string) {
	if kept := flag.Lookup("test.artifacts"); kept == nil || kept.Value.String() != "true" {
		return
	}
	file := filepath.Join(t.ArtifactDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Logf("keep %s: %v", name, err)
		return
	}
	fmt.Printf("=== all of it: %s\n", file)
}

// Eventually polls until check returns no error. It pauses for as long as the check took,
// within bounds, to spare the processor. The limit is for an idle machine and grows with
// the load.
func Eventually(t testing.TB, limit time.Duration, check func() error) {
	t.Helper()
	const minPause, maxPause = 100 * time.Millisecond, 500 * time.Millisecond
	for start := time.Now(); ; {
		began := time.Now()
		err := check()
		if err == nil {
			return
		}
		if since := time.Since(start); since > limit && since > time.Duration(float64(limit)*crowding()) {
			t.Fatalf("still after %v: %v", since, err)
		}
		time.Sleep(min(max(time.Since(began), minPause), maxPause))
	}
}

// crowding is the number of processes per processor, by the load of the last minute.
func crowding() float64 {
	average, _ := os.ReadFile("/proc/loadavg") // missing: as on an idle machine
	var load float64
	_, _ = fmt.Sscan(string(average), &load)
	return load / float64(runtime.NumCPU())
}
