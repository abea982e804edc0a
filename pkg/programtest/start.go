package programtest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Start starts a program, which ends with the test: it is asked to, and may not fail
// then, or it is killed if it still runs.
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

// keep writes a file into the folder of artifacts, where there is one.
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

// Eventually polls until check returns no error. It pauses for as long as the check
// took, within bounds: one that runs a program would take a processor for itself.
func Eventually(t testing.TB, limit time.Duration, check func() error) {
	t.Helper()
	const least, most = 100 * time.Millisecond, 500 * time.Millisecond
	for deadline := time.Now().Add(limit); ; {
		began := time.Now()
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still after %v: %v", limit, err)
		}
		time.Sleep(min(max(time.Since(began), least), most))
	}
}
