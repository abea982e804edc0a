package api_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
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
		t.Errorf("the silent client was not cut off for others: %s", p.Detail)
	}
	got := map[int]int{}
	for range cap(statuses) {
		got[<-statuses]++
	}
	expect.Equal(t, "answers", map[int]int{http.StatusOK: cap(statuses)}, got)
}

// TestAnOldRequestIsNotPublished: when an api resumes after it was suspended, its sockets have
// requests that their clients have long sent to another api.
func TestAnOldRequestIsNotPublished(t *testing.T) {
	t.Parallel()
	cfg := config()
	cfg.InFlightWait, cfg.BodyTimeout, cfg.PublishTimeout = 50*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond
	d := newDoor(t, cfg)
	addr, err := d.Listen()
	fatal.If(t, err)
	conn, err := net.Dial("tcp", addr.String())
	fatal.If(t, err)
	t.Cleanup(func() { conn.Close() })
	for _, body := range []string{`{"id":"1-1"}`, `{"id":"1-2"}`} {
		fmt.Fprintf(conn, "%sIdempotency-Key: %s\r\nContent-Length: %d\r\n\r\n%s", head, body[7:10], len(body), body)
	}
	time.Sleep(time.Second) // nothing accepts the connection
	d.run(t)
	answers := bufio.NewReader(conn)
	resp, err := http.ReadResponse(answers, nil)
	fatal.If(t, err)
	if p := wantProblem(t, resp, http.StatusTooManyRequests, "overloaded"); !strings.Contains(p.Detail, "to be read, and nothing of it was stored") {
		t.Errorf("the detail is %q", p.Detail)
	}
	resp, err = http.ReadResponse(answers, nil)
	fatal.If(t, err)
	wantProblem(t, resp, http.StatusTooManyRequests, "overloaded")

	body := request(http.MethodPost, "/flow/flowRecord/batch", `{"id":"1-3"}`, func(r *http.Request) { r.Body = lateBody{r.Body} })
	w := httptest.NewRecorder()
	published := error(nil)
	d.stream.before = func(ctx context.Context) error { published = ctx.Err(); return ctx.Err() }
	d.Handler().ServeHTTP(w, body)
	if published == nil || w.Code != http.StatusServiceUnavailable {
		t.Errorf("a request that took a second until its publish: %v, status %d", published, w.Code)
	}
	expect.Equal(t, "published", 0, len(d.stream.subs))
}

type lateBody struct{ io.ReadCloser }

func (b lateBody) Read(to []byte) (int, error) {
	time.Sleep(time.Second)
	return b.ReadCloser.Read(to)
}
