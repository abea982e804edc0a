package api_test

import (
	"bufio"
	"cmp"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestABusyMachineIsNotASlowClient: a body that arrived and is read late is waited for, however
// many bodies wait for memory. A silent client is cut off meanwhile.
func TestABusyMachineIsNotASlowClient(t *testing.T) {
	t.Parallel()
	cfg := config()
	cfg.BodyBytes, cfg.RecordBytes, cfg.InFlightBytes, cfg.InFlightWait = 4<<20, 1<<20, 16<<20, 20*time.Second
	cfg.BodyGrace, cfg.BodyTimeout = 300*time.Millisecond, time.Minute
	d := newDoor(t, cfg)
	if _, err := d.Listen(); err != nil {
		t.Fatal(err)
	}
	d.ReadLate(250 * time.Millisecond)
	addr, _ := d.run(t)
	silent, err := net.Dial("tcp", addr)
	fatal.If(t, err)
	t.Cleanup(func() { silent.Close() })
	fmt.Fprintf(silent, "%sContent-Length: %d\r\n\r\n[%s", head, 1<<19, strings.Repeat(" ", 1<<15))
	eventually(t, "it holds memory", func() bool { return d.held(t) > 0 })
	time.Sleep(300 * time.Millisecond) // its bytes are read, and it no longer counts as new

	// A post is one write, held whole by the kernel: the client has nothing left to send. In packets
	// of Ethernet the kernel drops some while reads are late, and sends them again.
	statuses := make(chan int, 60)
	ethernet := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return cmp.Or(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, 1448) }), err)
	}}
	for i := range cap(statuses) {
		conn, err := ethernet.Dial("tcp", addr)
		fatal.If(t, err)
		t.Cleanup(func() { conn.Close() })
		fatal.If(t, conn.(*net.TCPConn).SetWriteBuffer(1<<20))
		body := fmt.Sprintf(`{"id":"1-%d"}`, i) + strings.Repeat(" ", 200<<10)
		go func() {
			fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Error(err)
				statuses <- 0
				return
			}
			statuses <- resp.StatusCode
		}()
	}
	resp, err := http.ReadResponse(bufio.NewReader(silent), nil)
	fatal.If(t, err)
	if p := wantProblem(t, resp, http.StatusRequestTimeout, "body_timeout"); !strings.Contains(p.Detail, "others waited") {
		t.Errorf("the client that says nothing was not cut off for others: %s", p.Detail)
	}
	got := map[int]int{}
	for range cap(statuses) {
		got[<-statuses]++
	}
	expect.Equal(t, "answers", map[int]int{http.StatusOK: cap(statuses)}, got)
}
