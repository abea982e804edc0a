package api_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// dialFrom opens a connection from a local address.
func dialFrom(t *testing.T, from, to string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second}
	conn, err := dialer.Dial("tcp", to)
	fatal.If(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// use makes a request over a connection and leaves it open.
func use(conn net.Conn) (int, error) {
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	defer conn.SetDeadline(time.Time{})
	if _, err := fmt.Fprint(conn, "GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		return 0, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

func wantUsed(t *testing.T, conn net.Conn) {
	t.Helper()
	if status, err := use(conn); err != nil || status != http.StatusOK {
		t.Errorf("got %d %v, want 200", status, err)
	}
}

// busyConn occupies a connection with a request whose body is outstanding.
func busyConn(t *testing.T, from, to string) net.Conn {
	conn := dialFrom(t, from, to)
	fmt.Fprint(conn, head+"Content-Length: 100\r\n\r\n[")
	return conn
}

func closedByServer(conn net.Conn) bool {
	conn.SetReadDeadline(time.Now().Add(time.Second))
	_, err := conn.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

func TestConnectionsOfAnAddressAreCapped(t *testing.T) {
	cfg := config()
	cfg.Connections, cfg.AddressConnections = 100, 4
	d := newDoor(t, cfg)
	addr, _ := d.run(t)
	for range 4 {
		busyConn(t, "127.0.0.2", addr)
	}
	eventually(t, "all of them are busy", func() bool { return d.metric(t, "sluice_api_requests_in_flight", "") == 4 })
	expect.Not(t, !closedByServer(dialFrom(t, "127.0.0.2", addr)) || d.metric(t, "sluice_api_connections_rejected_total", "") != 1, "one more connection of the address was not refused")
	wantUsed(t, dialFrom(t, "127.0.0.1", addr))
}

func TestAnIdleConnectionIsClosedForAnotherOfItsAddress(t *testing.T) {
	cfg := config()
	cfg.Connections, cfg.AddressConnections = 100, 4
	d := newDoor(t, cfg)
	addr, _ := d.run(t)
	var kept []net.Conn
	used := func(conn net.Conn) { // idle again only after the answer
		wantUsed(t, conn)
		eventually(t, "they all wait", func() bool { return d.Idle() == len(kept) })
	}
	for range 4 {
		kept = append(kept, dialFrom(t, "127.0.0.1", addr))
		used(kept[len(kept)-1])
	}
	used(kept[0]) // now the second one has been idle longest
	wantUsed(t, dialFrom(t, "127.0.0.1", addr))
	expect.Not(t, !closedByServer(kept[1]), "the connection that waited longest is still there")
	wantUsed(t, kept[0])
}

// TestAHoarderOfConnectionsShutsNoOthersOut: a few addresses hold idle connections up to the
// limit.
func TestAHoarderOfConnectionsShutsNoOthersOut(t *testing.T) {
	cfg := config()
	cfg.Connections, cfg.AddressConnections = 32, 16
	d := newDoor(t, cfg)
	addr, _ := d.run(t)
	for i := range 32 {
		dialFrom(t, fmt.Sprintf("127.0.0.%d", 2+i%2), addr) // sends nothing
	}
	for range 8 {
		start := time.Now()
		wantUsed(t, dialFrom(t, "127.0.0.1", addr))
		if took := time.Since(start); took > 250*time.Millisecond*slowdown {
			t.Errorf("a client waited %s for a connection", took)
		}
	}
	expect.Not(t, d.metric(t, "sluice_api_connections_closed_total", "") == 0, "no connection was closed")
}
