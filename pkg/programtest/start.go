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

// Start starts a program, which ends with the test: it is asked to first when it
// has so long for that, and may not fail then; with 0 it is killed if it still runs.
func Start(t testing.TB, name string, cmd *exec.Cmd, toEnd time.Duration) *Process {
	t.Helper()
	p, err := Launch(cmd, filepath.Join(t.TempDir(), name+".log"))
	if err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		if toEnd == 0 {
			p.Kill()
		} else if p.Stop(toEnd); p.Err() != nil {
			t.Errorf("%s ended with %v", name, p.Err())
		}
		if t.Failed() {
			show(t, name, p)
		}
	})
	return p
}

// shown is how many lines of a program are shown when a test has failed.
const shown = 15

// show shows the last that a program has written. It goes out before what go test
// says of the test, so that the assertion which failed comes last. All that it has
// written stays in the folder of artifacts, where there is one (go test -artifacts).
func show(t testing.TB, name string, p *Process) {
	fmt.Printf("=== %s: the end of what %s (%s) wrote:\n%s\n", t.Name(), name, p, p.Tail(shown))
	if kept := flag.Lookup("test.artifacts"); kept == nil || kept.Value.String() != "true" {
		return
	}
	file := filepath.Join(t.ArtifactDir(), filepath.Base(filepath.Dir(p.Log()))+"-"+name+".log")
	if err := os.WriteFile(file, []byte(p.Output()), 0o600); err != nil {
		t.Logf("keep the log of %s: %v", name, err)
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
