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

// Main runs the tests of a package that uses StartProcess, or, in a process that one of them
// started, the server.
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
	select {} // serve until killed
}

// Process is a NATS server in a process that tests kill and pause.
type Process struct {
	*programtest.Process
	URL  string // the same after every start
	Data string // folder of its files
	t    testing.TB
}

// StartProcess starts a server in its own process; the package needs Main.
func StartProcess(t testing.TB) *Process {
	t.Helper()
	return startProcess(t, programtest.Address(), t.TempDir(), "")
}

// StartProcesses starts a cluster of n servers, n0 and so on, each in its own process, and
// returns them with their URL.
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

// Start starts the server on its data and port, and returns once it serves.
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

// Kill ends the server by SIGKILL, like a power failure that the page cache survives.
func (p *Process) Kill() { p.Process.Kill() }

// Pause suspends the process; its connections stay open.
func (p *Process) Pause() {
	p.t.Helper()
	if !p.Process.Pause() {
		p.t.Fatal("NATS does not pause")
	}
}
