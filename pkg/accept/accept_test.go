//go:build linux || darwin

package accept_test

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sluice/pkg/accept"
	"sluice/pkg/fatal"
)

// logged is a log that can be read while it is written.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// serve answers requests on a port of the test.
func serve(t *testing.T, cfg accept.Config) (*accept.Listener, *logged) {
	t.Helper()
	var log logged
	cfg.Address = "127.0.0.1:0"
	l, err := accept.Listen(cfg, slog.New(slog.NewTextHandler(&log, nil)))
	fatal.If(t, err)
	srv := &http.Server{ConnState: l.State, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") })}
	ended := make(chan struct{})
	go func() { defer close(ended); srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-ended })
	return l, &log
}

// halfOpen is a connection whose request never ends.
func halfOpen(t *testing.T, l *accept.Listener) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", l.Addr().String())
	fatal.If(t, err)
	t.Cleanup(func() { conn.Close() })
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a\r\n")
	return conn
}

func TestHalfOpenRequestsLeaveRoomForOthers(t *testing.T) {
	var closed atomic.Int32
	l, _ := serve(t, accept.Config{Max: 8, Closed: func() { closed.Add(1) }, Rejected: func() {}})
	for range 40 {
		halfOpen(t, l)
	}
	started := time.Now()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	answer, err := client.Get("http://" + l.Addr().String())
	fatal.If(t, err)
	answer.Body.Close()
	if took := time.Since(started); took > time.Second || closed.Load() < 32 {
		t.Errorf("a client waited %s; %d half-open connections were closed, want 32 or more", took, closed.Load())
	}
}

// TestFileDescriptors runs in its own process, with a limit of 64.
func TestFileDescriptors(t *testing.T) {
	if os.Getenv("FEW_DESCRIPTORS") == "" {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestFileDescriptors$", "-test.v")
		cmd.Env = append(os.Environ(), "FEW_DESCRIPTORS=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	fatal.If(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 64, Max: 64}))
	l, log := serve(t, accept.Config{Max: 4096})
	if got := log.String(); !strings.Contains(got, "connections=8 configured=4096 descriptors=64") {
		t.Errorf("the log is %q", got)
	}
	fatal.If(t, l.Check(t.Context()))

	var files []*os.File // all descriptors but one, for another connection of this test
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		files = append(files, f)
	}
	files[len(files)-1].Close()
	files[len(files)-2].Close()
	files = files[:len(files)-2]
	halfOpen(t, l)
	conn := make(chan error, 1)
	go func() { // The kernel accepts it; the process has no descriptor left for it.
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			defer c.Close()
			time.Sleep(300 * time.Millisecond)
		}
		conn <- err
	}()
	for deadline := time.Now().Add(5 * time.Second); l.Check(t.Context()) == nil && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if f, err := os.Open(os.DevNull); err == nil {
			files = append(files, f)
		}
	}
	if err := l.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "raise their limit") {
		t.Errorf("the port counts as ready without a file descriptor: %v", err)
	}
	<-conn
	for _, f := range files {
		f.Close()
	}
	answer, err := http.Get("http://" + l.Addr().String())
	fatal.If(t, err)
	answer.Body.Close()
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
		t.Errorf("the shortage is logged %d times:\n%s", n, log)
	}
}
