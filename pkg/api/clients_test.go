package api_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
)

// raw sends bytes over its own connection. It returns the response until the server closes it, and
// the time taken.
func raw(t *testing.T, addr string, write func(net.Conn)) (string, time.Duration) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	fatal.If(t, err)
	defer conn.Close()
	start := time.Now()
	go write(conn)
	fatal.If(t, conn.SetReadDeadline(start.Add(10*time.Second)))
	answer, err := io.ReadAll(conn)
	expect.Not(t, err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset"), "read: %v", err)
	return string(answer), time.Since(start)
}

const head = "POST /flow/flowRecord/batch HTTP/1.1\r\nHost: a\r\nAuthorization: engine\r\nContent-Type: application/json\r\n"

func trickle(conn net.Conn, first, again string, every time.Duration) {
	_, err := io.WriteString(conn, first)
	for ; err == nil; time.Sleep(every) {
		_, err = io.WriteString(conn, again)
	}
}

func TestClientsThatKeepUsWaitingAreCutOff(t *testing.T) {
	cfg := config()
	cfg.HeaderTimeout, cfg.BodyTimeout, cfg.BodyGrace, cfg.BodyRate = 300*time.Millisecond, 1500*time.Millisecond, 300*time.Millisecond, 10_000
	tests := []struct {
		name         string
		first, again string
		every        time.Duration
		answer       string // begins with
		within       time.Duration
	}{
		{"a header that never ends", "POST / HTTP/1.1\r\n", "X-A: b\r\n", 50 * time.Millisecond, "", time.Second},
		{"a header that is too long", head, "X-A: " + strings.Repeat("b", 4000) + "\r\n", 0, "HTTP/1.1 431", time.Second},
		{"a body that never comes", head + "Content-Length: 100\r\n\r\n", "", 50 * time.Millisecond, "HTTP/1.1 408", 1200 * time.Millisecond},
		{"a body that comes byte by byte", head + "Content-Length: 1000\r\n\r\n[", " ", 20 * time.Millisecond, "HTTP/1.1 408", 1200 * time.Millisecond},
		{"chunks that come byte by byte", head + "Transfer-Encoding: chunked\r\n\r\n", "1\r\n[\r\n", 20 * time.Millisecond, "HTTP/1.1 408", 1200 * time.Millisecond},
		{"a body fast enough that never ends", head + "Transfer-Encoding: chunked\r\n\r\n", "400\r\n" + strings.Repeat(" ", 1024) + "\r\n", 20 * time.Millisecond, "HTTP/1.1 408", 2500 * time.Millisecond},
		{"a body that is faster than that and never ends", head + "Transfer-Encoding: chunked\r\n\r\n", "100000\r\n" + strings.Repeat(" ", 1<<20) + "\r\n", 0, "HTTP/1.1 413", 2500 * time.Millisecond},
		{"a body announced as huge", head + "Content-Length: 1000000000\r\n\r\n", " ", 20 * time.Millisecond, "HTTP/1.1 413", time.Second},
		{"an unknown client whose body never comes", strings.Replace(head, "engine", "swordfish", 1) + "Content-Length: 100\r\n\r\n", "", 50 * time.Millisecond, "HTTP/1.1 401", 1200 * time.Millisecond},
		{"a path that is not there and a body that never comes", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n", "", 50 * time.Millisecond, "HTTP/1.1 404", 1200 * time.Millisecond},
		{"a deletion with a body that never comes", "DELETE " + fieldPath("t", "f") + " HTTP/1.1\r\nHost: a\r\nAuthorization: engine\r\nContent-Length: 100\r\n\r\n", "", 50 * time.Millisecond, "HTTP/1.1 200", 1200 * time.Millisecond},
		{"invalid chunks", head + "Transfer-Encoding: chunked\r\n\r\n", "zz\r\n", 20 * time.Millisecond, "HTTP/1.1 400", time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDoor(t, cfg)
			addr, _ := d.run(t)
			answer, took := raw(t, addr, func(c net.Conn) { trickle(c, tt.first, tt.again, tt.every) })
			expect.Not(t, !strings.HasPrefix(answer, tt.answer) || tt.answer == "" && answer != "", "got %q, want it to begin with %q", answer, tt.answer)
			expect.Not(t, took > tt.within, "cut off after %s, want within %s", took, tt.within)
			eventually(t, "the memory is given back", func() bool { return d.held(t) == 0 })
			expect.Not(t, len(d.stream.subs) != 0, "something was published")
		})
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		fatal.When(t, time.Now().After(deadline), "not within 30s: %s", what)
	}
}

func TestAClientThatGoesAwayStoresNothing(t *testing.T) {
	d := newDoor(t, config())
	addr, _ := d.run(t)
	conn, err := net.Dial("tcp", addr)
	fatal.If(t, err)
	fmt.Fprint(conn, head+"Content-Length: 100\r\n\r\n[{\"id\":\"1-1\"}")
	eventually(t, "the body is being read", func() bool { return d.held(t) > 0 })
	conn.Close()
	eventually(t, "the memory is given back", func() bool { return d.held(t) == 0 })
	eventually(t, "it is counted", func() bool { return d.metric(t, "sluice_api_rejections_total", "body_incomplete") == 1 })
	expect.Not(t, len(d.stream.subs) != 0, "something was published")
}

func TestAForbiddenClientIsAnsweredBeforeItSendsItsBody(t *testing.T) {
	d := newDoor(t, config())
	addr, _ := d.run(t)
	for token, want := range map[string]string{"swordfish": "HTTP/1.1 401", "engine": "HTTP/1.1 100"} {
		conn, err := net.Dial("tcp", addr)
		fatal.If(t, err)
		defer conn.Close()
		fmt.Fprint(conn, strings.Replace(head, "engine", token, 1)+"Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n")
		line, err := bufio.NewReader(conn).ReadString('\n')
		expect.Not(t, err != nil || !strings.HasPrefix(line, want), "%s: got %q %v, want %s", token, line, err, want)
	}
}

// TestAConnectionWhoseContextHasEndedIsClosed: a deadline that coincides with the end of a body
// ends the connection's context, and with it that of every later post on it.
func TestAConnectionWhoseContextHasEndedIsClosed(t *testing.T) {
	d := newDoor(t, config())
	ctx, end := context.WithCancel(t.Context())
	d.stream.before = func(context.Context) error {
		end()
		return &flow.RetryError{Err: flow.ErrBusy, After: time.Second}
	}
	resp := d.post(`{"id":"1-1"}`, func(r *http.Request) { *r = *r.WithContext(ctx) })
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Connection") != "close" {
		t.Errorf("answered %s, Connection %q, want 429 and the end of the connection", resp.Status, resp.Header.Get("Connection"))
	}
	d.stream.before = func(context.Context) error { return &flow.RetryError{Err: flow.ErrBusy, After: time.Second} }
	if resp := d.post(`{"id":"1-2"}`); resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Connection") != "" {
		t.Errorf("answered %s, Connection %q, want 429 on a connection that stays", resp.Status, resp.Header.Get("Connection"))
	}
}

func TestASlowLargeBodyIsCutOffWhenOthersWaitForItsMemory(t *testing.T) {
	cfg := config()
	cfg.BodyBytes, cfg.RecordBytes, cfg.InFlightBytes, cfg.InFlightWait = 4<<20, 1<<20, 16<<20, 2*time.Second
	d := newDoor(t, cfg)
	addr, _ := d.run(t)
	slow := make(chan string, 2)
	for range 2 { // all of the memory for large bodies
		go func() {
			answer, _ := raw(t, addr, func(c net.Conn) {
				fmt.Fprintf(c, "%sContent-Length: %d\r\n\r\n[%s", head, 4<<20, strings.Repeat(" ", 1<<20))
			})
			slow <- answer
		}()
	}
	eventually(t, "the slow clients hold all memory", func() bool { return d.held(t) == 8<<20 })
	start := time.Now()
	r := request(http.MethodPost, "http://"+addr+"/flow/flowRecord/batch", `{"id":"1-1"}`+strings.Repeat(" ", 3<<20))
	r.RequestURI = ""
	resp, err := http.DefaultClient.Do(r)
	fatal.If(t, err)
	wantOK(t, resp)
	if took := time.Since(start); took > 1900*time.Millisecond*slowdown {
		t.Errorf("it took %s to get the memory", took)
	}
	if answer := <-slow; !strings.HasPrefix(answer, "HTTP/1.1 408") || !strings.Contains(answer, "while others waited") {
		t.Errorf("the slow client was answered %q", answer)
	}
}

func TestWithoutMemoryARequestIsRefusedAfterItsWait(t *testing.T) {
	cfg := config()
	cfg.BodyBytes, cfg.RecordBytes, cfg.InFlightBytes, cfg.InFlightWait = 4<<20, 1<<20, 16<<20, 50*time.Millisecond
	d := newDoor(t, cfg)
	entered, _, proceed := d.block()
	large := `{"id":"1-1"}` + strings.Repeat(" ", 3<<20)
	answers := d.serveAll(2, large)
	<-entered
	<-entered
	resp := d.serveOne(request(http.MethodPost, "/flow/flowRecord/batch", large))
	wantProblem(t, resp, 429, "overloaded")
	expect.Equal(t, "Retry-After", "1", resp.Header.Get("Retry-After"))
	proceed()
	for range 2 {
		wantOK(t, <-answers)
	}
	expect.Equal(t, "bytes are still held", 0, d.held(t))
}
