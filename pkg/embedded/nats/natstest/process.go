package natstest

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	embedded "sluice/pkg/embedded/nats"
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
	if err := child(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// child serves until its parent is gone. A number on standard input is how
// large its files may be from now on.
func child() error {
	signal.Ignore(syscall.SIGXFSZ) // a file that is too large is an error, not the end
	srv, err := embedded.Start(embedded.Config{Data: os.Getenv(childData), Listen: os.Getenv(childListen), ConfigFile: os.Getenv(childConfig)}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer srv.Shutdown()
	fmt.Println(srv.ClientURL())
	lines := bufio.NewScanner(os.Stdin) // ends with the parent
	for lines.Scan() {
		if err := limitFiles(lines.Text()); err != nil {
			return err
		}
	}
	return lines.Err()
}

func limitFiles(text string) error {
	size, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return err
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	limit.Cur = min(size, limit.Max)
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit)
}

// Process is a NATS server in a process of its own, to be killed and stopped.
type Process struct {
	URL    string // the same after every start
	Data   string // folder of its files
	t      testing.TB
	listen string
	config string // file, of a server in a cluster
	cmd    *exec.Cmd
	stdin  io.WriteCloser
}

// StartProcess starts a server in a process of its own for the time of the
// test, which needs Main.
func StartProcess(t testing.TB) *Process {
	t.Helper()
	p := &Process{t: t, Data: t.TempDir(), listen: "127.0.0.1:0"}
	p.Start()
	u, err := url.Parse(p.URL)
	if err != nil {
		t.Fatalf("parse %q: %v", p.URL, err)
	}
	p.listen = net.JoinHostPort(u.Hostname(), u.Port())
	t.Cleanup(p.Kill)
	return p
}

// StartProcesses starts a cluster of n servers, n0 and so on, each in a process
// of its own, and returns them with the URL of all.
func StartProcesses(t testing.TB, n int) (url string, all []*Process) {
	t.Helper()
	url, files := clusterFiles(t, n)
	for _, file := range files {
		p := &Process{t: t, Data: filepath.Dir(file), config: file}
		p.Start()
		t.Cleanup(p.Kill)
		all = append(all, p)
	}
	return url, all
}

// Start starts the server on its data and port, and returns when it serves.
func (p *Process) Start() {
	p.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childData+"="+p.Data, childListen+"="+p.listen, childConfig+"="+p.config)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatalf("start NATS: %v", err)
	}
	p.cmd, p.stdin = cmd, stdin
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		p.Kill()
		p.t.Fatalf("start NATS: it ended before it served: %v", err)
	}
	p.URL = strings.TrimSpace(line)
}

// Kill ends the server as a power switch would, except that the operating
// system keeps what it was given.
func (p *Process) Kill() {
	if p.cmd == nil {
		return
	}
	p.signal(syscall.SIGKILL)
	_ = p.cmd.Wait() // it was killed: it says so
	_ = p.stdin.Close()
	p.cmd = nil
}

// FillDisk makes every write beyond size bytes of a file fail from now on.
func (p *Process) FillDisk(size uint64) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.stdin, size); err != nil {
		p.t.Errorf("limit the files of NATS: %v", err)
	}
}

// EmptyDisk undoes FillDisk.
func (p *Process) EmptyDisk() { p.FillDisk(1 << 62) }

// Pause stops the process where it is, and returns once all of its threads
// stand; its connections stay open.
func (p *Process) Pause() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	for begun := time.Now(); !p.stands(); time.Sleep(time.Millisecond) {
		if time.Since(begun) > 10*time.Second {
			p.t.Fatal("NATS does not stand still")
		}
	}
}

// stands tells whether all threads are stopped, as Linux says; elsewhere a
// signal has all the time it takes.
func (p *Process) stands() bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	if len(threads) == 0 {
		time.Sleep(100 * time.Millisecond)
		return true
	}
	for _, name := range threads {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		if _, state, ok := strings.Cut(string(stat), ") "); ok && !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return true
}

// Resume lets it go on.
func (p *Process) Resume() { p.signal(syscall.SIGCONT) }

func (p *Process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Errorf("signal %v to NATS: %v", s, err)
	}
}
