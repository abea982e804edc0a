package programtest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/programtest"
)

func TestAProcessThatEndsIsNeverReady(t *testing.T) {
	dir := t.TempDir()
	p := programtest.New(dir, "early", "false")
	p.Ops = programtest.Address()
	ended := make(chan string, 1)
	p.Ended = func(_ *programtest.Process, state string) { ended <- state }
	fatal.If(t, p.Start())
	if err := p.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("a program that has ended is ready or not: %v", err)
	}
	expect.Equal(t, "it ended with", "exit status 1", <-ended)
	if _, err := os.Stat(filepath.Join(dir, "early.log")); err != nil {
		t.Error(err)
	}
}

func TestAProcessIsPausedAndReplaced(t *testing.T) {
	dir := t.TempDir()
	p := programtest.New(dir, "sleeps", "/bin/sleep", "60")
	p.Ended = func(_ *programtest.Process, state string) { t.Errorf("it ended unexpectedly: %s", state) }
	fatal.If(t, p.Start())
	defer p.Kill()
	expect.Not(t, !p.Pause() || !p.Kill() || p.Kill(), "it was not paused, killed, and then down")
	fatal.If(t, p.Start())
	if err := p.Stop(); err == nil { // by the signal
		t.Error("an unclean stop was not reported")
	}
}
