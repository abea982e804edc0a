package natstest

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/fatal"
	"sluice/pkg/programtest"
)

const (
	childData   = "NATSTEST_DATA"
	childListen = "NATSTEST_LISTEN"
	childConfig = "NATSTEST_CONFIG"
)

// Main runs the tests of a package that use StartProcess. In a process that one
// of them started, it is the server instead.
//
//	func TestMain(m *testing.M) { natstest.Main(m) }
func Main(m *testing.M) {
	if os.Getenv(childData) == "" {
		os.Exit(m.Run())
	}
	config := embedded.Config{Data: os.Getenv(childData), Listen: os.Getenv(childListen), ConfigFile: os.Getenv(childConfig)}
	if _, err := embedded.Start(config, slog.New(slog.DiscardHandler)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {} // it serves until it is killed
}

// Process is a NATS server in a process of its own, to be killed and paused.
type Process struct {
	*programtest.Process
	URL  string // the same after every start
	Data string // folder of its files
	t    testing.TB
}

// StartProcess starts a server in a process of its own for the time of the
// test, which needs Main.
func StartProcess(t testing.TB) *Process {
	t.Helper()
	return startProcess(t, programtest.Address(), t.TempDir(), "")
}

// StartProcesses starts a cluster of n servers, n0 and so on, each in a process
// of its own, and returns them with the URL of all.
func StartProcesses(t testing.TB, n int) (url string, all []*Process) {
	t.Helper()
	url, files := clusterFiles(t, n)
	for i, address := range strings.Split(url, ",") {
		all = append(all, startProcess(t, strings.TrimPrefix(address, "nats://"), filepath.Dir(files[i]), files[i]))
	}
	return url, all
}

func startProcess(t testing.TB, address, data, config string) *Process {
	t.Helper()
	p := &Process{Process: programtest.New(t.TempDir(), "nats", os.Args[0], "-test.run=^$"), URL: "nats://" + address, Data: data, t: t}
	p.Cmd.Env = append(os.Environ(), childData+"="+data, childListen+"="+address, childConfig+"="+config)
	t.Cleanup(func() {
		p.Process.Kill()
		p.ShowIfFailed(t)
	})
	p.Start()
	return p
}

// Start starts the server on its data and port, and returns when it serves.
func (p *Process) Start() {
	p.t.Helper()
	fatal.If(p.t, p.Process.Start())
	for {
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.URL, "nats://"))
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-p.Exited():
			p.t.Fatalf("start NATS: it ended before it served:\n%s", p.Output())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Kill ends the server as a power switch would, except that the operating
// system keeps what it was given.
func (p *Process) Kill() { p.Process.Kill() }

// Pause stops the process where it is; its connections stay open.
func (p *Process) Pause() {
	p.t.Helper()
	if !p.Process.Pause() {
		p.t.Fatal("NATS does not stand still")
	}
}
