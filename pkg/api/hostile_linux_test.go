package api_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// everyAttack is the name of all attacks at once.
const everyAttack = "all at once"

// attackFromStdin runs 64 hostile clients. Each line names the attack until the next line; the
// output is the number of each answer to the previous one.
func attackFromStdin(addr string) error {
	attacks := newClient("127.0.0.1", addr, "engine").attacks()
	end := func() map[int]int { return nil }
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Println(end())
		end = attack(slices.DeleteFunc(slices.Clone(attacks), func(a hostile) bool {
			return a.name != lines.Text() && lines.Text() != everyAttack
		}))
	}
	end()
	return lines.Err()
}

// attack attacks until end, which returns the number of each answer.
func attack(attacks []hostile) (end func() map[int]int) {
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	answers := map[int]int{}
	var clients sync.WaitGroup
	for i := range min(64, 64*len(attacks)) {
		clients.Go(func() {
			for ctx.Err() == nil {
				if status, err := attacks[i%len(attacks)].once(ctx); err == nil {
					mu.Lock()
					answers[status]++
					mu.Unlock()
				}
			}
		})
	}
	return func() map[int]int {
		cancel()
		clients.Wait()
		return answers
	}
}

// client is a client of the api at an address.
type client struct {
	addr, token string
	http        *http.Client
}

// newClient makes a client that calls from a local address.
func newClient(from, addr, token string) *client {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	transport := &http.Transport{MaxIdleConnsPerHost: 100, DialContext: dialer.DialContext}
	return &client{addr, token, &http.Client{Transport: transport, Timeout: time.Minute}}
}

func (c *client) post(ctx context.Context, body io.Reader, length int64, encoding string) (int, error) {
	return c.send(ctx, http.MethodPost, "/flow/flowRecord/batch", body, length, encoding)
}

func (c *client) send(ctx context.Context, method, path string, body io.Reader, length int64, encoding string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+c.addr+path, body)
	if err != nil {
		return 0, err
	}
	r.ContentLength = length
	r.Header.Set("Authorization", c.token)
	r.Header.Set("Content-Encoding", encoding)
	resp, err := c.http.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// hostile is a way to take more than a fair share.
type hostile struct {
	name string
	once func(context.Context) (status int, err error)
}

func (c *client) attacks() []hostile {
	t := &testing.B{} // for helpers, which fail only on a defect
	huge := scrambled(16 << 20)
	gzipBomb, zstdBomb := gzipped(t, strings.Repeat(" ", 16<<20)), zstded(t, strings.Repeat(" ", 16<<20))
	dense := gzipped(t, huge)
	falseSize := liar(gzipped(t, scrambled(8<<20)))
	passwords := `{"projects":[` + strings.TrimSuffix(strings.Repeat(`{"password":"x"},`, 16), ",") + `]}`
	whole := func(body, encoding string) func(context.Context) (int, error) {
		return func(ctx context.Context) (int, error) {
			return c.post(ctx, strings.NewReader(body), int64(len(body)), encoding)
		}
	}
	stream := func(body func() io.Reader) func(context.Context) (int, error) {
		return func(ctx context.Context) (int, error) { return c.post(ctx, body(), -1, "") }
	}
	return []hostile{
		{"16 MiB", whole(huge, "")},
		{"16 MiB of unknown length", stream(func() io.Reader { return strings.NewReader(huge) })},
		{"16 MiB in gzip", whole(dense, "gzip")},
		{"a bomb in gzip", whole(gzipBomb, "gzip")},
		{"a bomb in zstd", whole(zstdBomb, "zstd")},
		{"without an end", stream(func() io.Reader { return endless{} })},
		{"without an end, in pieces", stream(func() io.Reader { return endless{200 * time.Microsecond} })},
		{"16 MiB slowly", func(ctx context.Context) (int, error) { return 0, announceAndWait(ctx, c.addr, 16<<20, 1) }},
		{"512 KiB slowly", func(ctx context.Context) (int, error) { return 0, announceAndWait(ctx, c.addr, 1<<19, 8) }},
		{"a false size in gzip", whole(falseSize, "gzip")},
		{"passwords", func(ctx context.Context) (int, error) {
			return c.send(ctx, http.MethodPatch, "/spm/login/current/user", strings.NewReader(passwords), int64(len(passwords)), "")
		}},
		{"hoarded connections", func(ctx context.Context) (int, error) { return 0, hoard(ctx, c.addr, 64) }},
	}
}

// endless is a body without end, with a pause between its chunks.
type endless struct{ pause time.Duration }

func (e endless) Read(b []byte) (int, error) {
	time.Sleep(e.pause)
	n := min(len(b), 4096)
	for i := range n {
		b[i] = ' '
	}
	return n, nil
}

// announceAndWait announces bodies of a size over several connections, and sends them at 16 KiB/s: just
// fast enough not to be cut off.
func announceAndWait(ctx context.Context, addr string, announced, connections int) error {
	var wg sync.WaitGroup
	for range connections {
		wg.Go(func() {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				return
			}
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n[", head, announced)
			go func() {
				for ctx.Err() == nil {
					if _, err := conn.Write(bytes.Repeat([]byte(" "), 4<<10)); err != nil {
						return
					}
					time.Sleep(250 * time.Millisecond)
				}
			}()
			_, _ = io.Copy(io.Discard, conn)
		})
	}
	wg.Wait()
	return errors.New("answered or cut off") // not a countable answer
}

// hoard opens connections from its own address, uses each once, and keeps it for a second.
func hoard(ctx context.Context, addr string, connections int) error {
	var conns []net.Conn
	defer func() {
		for _, conn := range conns {
			conn.Close()
		}
	}()
	for range connections {
		dialer := net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		conn, err := dialer.DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		conns = append(conns, conn)
		if _, err := use(conn); err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
	return errors.New("kept for a second") // not a countable answer
}
