package stream_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/pkg/dial"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// slowDisk is a proxy that delays the server's messages, like a server with a slow disk, which answers pings
// immediately.
type slowDisk struct {
	t      *testing.T
	server string
	delay  atomic.Int64 // of every message to the client, in nanoseconds
}

// slow starts a slowDisk, and returns the URL to connect to.
func slow(t *testing.T, server string) (*slowDisk, string) {
	t.Helper()
	u, err := url.Parse(server)
	fatal.If(t, err)
	d := &slowDisk{t: t, server: u.Host}
	return d, "nats://" + proxied(t, d.serve)
}

// serve forwards both directions until one end hangs up.
func (d *slowDisk) serve(ctx context.Context, client net.Conn) {
	server, err := net.Dial("tcp", d.server)
	if err != nil {
		d.t.Errorf("dial: %v", err)
		client.Close()
		return
	}
	hangUp := func() { client.Close(); server.Close() }
	defer context.AfterFunc(ctx, hangUp)()
	var passing sync.WaitGroup
	passing.Go(func() { defer hangUp(); _, _ = io.Copy(server, client) })
	defer passing.Wait()
	defer hangUp()
	held := make(chan heldBack, 1000)
	defer close(held)
	var writing sync.Mutex
	write := func(b []byte) {
		writing.Lock()
		defer writing.Unlock()
		_, _ = client.Write(b) // the client may have gone
	}
	passing.Go(func() {
		for h := range held {
			time.Sleep(time.Until(h.until))
			write(h.bytes)
		}
	})
	for in := bufio.NewReader(server); ; {
		op, isMessage, err := nextOp(in)
		if err != nil {
			return
		}
		if isMessage {
			held <- heldBack{op, time.Now().Add(time.Duration(d.delay.Load()))}
		} else {
			write(op)
		}
	}
}

type heldBack struct {
	bytes []byte
	until time.Time
}

// nextOp reads one operation of the NATS protocol, a message with its body.
func nextOp(in *bufio.Reader) (op []byte, isMessage bool, err error) {
	line, err := in.ReadBytes('\n')
	if err != nil || !bytes.HasPrefix(line, []byte("MSG ")) && !bytes.HasPrefix(line, []byte("HMSG ")) {
		return line, false, err
	}
	fields := strings.Fields(string(line))
	size, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil {
		return nil, false, fmt.Errorf("read %q: %w", line, err)
	}
	body := make([]byte, size+len("\r\n"))
	_, err = io.ReadFull(in, body)
	return append(line, body...), true, err
}

// TestASlowServerIsWaitedFor: it answers later than the silence limit, yet it is alive.
func TestASlowServerIsWaitedFor(t *testing.T) {
	disk, url := slow(t, natstest.Start(t).URL)
	w := openBy(t, dial.Config{URL: url, Name: "test", Silence: silence}, stream.Config{})
	pub := w.publisher()
	w.publish(pub, "known", 1) // a new source is looked up, with a shorter timeout
	const takes = 2500 * time.Millisecond
	disk.delay.Store(int64(takes))
	var all sync.WaitGroup
	for name, send := range map[string]sender{"small": sends(10), "big": sends(400 << 10), "parts": sends(10, 10), "change": changes} {
		all.Go(func() {
			begun := time.Now()
			if err := send(w, pub, name)(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			took := time.Since(begun)
			t.Logf("%s: %v", name, took)
			expect.Not(t, took < takes, "%s: it took %v, the test shows nothing", name, took)
		})
	}
	all.Wait()
	disk.delay.Store(0)
	expect.Equal(t, "reconnects", 0, value(t, w.reg, "sluice_stream_reconnects_total", nil))
	expect.Equal(t, "it was tried again times", 0, value(t, w.reg, "sluice_stream_retries_total", nil))
	w.hold(6)
}

// TestACallThatGaveUpIsFoundByItsRepeat: an abandoned call's message is still sent; the repeat
// waits for it instead of sending it again.
func TestACallThatGaveUpIsFoundByItsRepeat(t *testing.T) {
	disk, url := slow(t, natstest.Start(t).URL)
	w := openBy(t, dial.Config{URL: url, Name: "test", Silence: silence}, stream.Config{})
	pub := w.publisher()
	w.publish(pub, "known", 1)
	disk.delay.Store(int64(time.Second))
	var all sync.WaitGroup
	for _, id := range []string{"in-flight", "queued"} {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if _, err := pub.Publish(ctx, submission(id, 10)); !errors.Is(err, flow.ErrUnavailable) {
				t.Errorf("%s: got %v, want %v: it may be stored yet", id, err, flow.ErrUnavailable)
			}
			got, err := pub.Publish(t.Context(), submission(id, 10))
			expect.Not(t, err != nil || !got.Replayed || len(got.Places) != 1, "%s, repeated: got %+v, %v, want that it is replayed", id, got, err)
			other := submission(id, 10)
			other.Hash = "of another body"
			if _, err := pub.Publish(t.Context(), other); !errors.Is(err, flow.ErrKeyReused) {
				t.Errorf("%s with another body: got %v, want %v", id, err, flow.ErrKeyReused)
			}
		})
		time.Sleep(50 * time.Millisecond)
	}
	all.Wait()
	disk.delay.Store(0)
	if got := ids(w.all(0)); !slices.Equal(got, []string{"known-0", "in-flight", "queued"}) {
		t.Errorf("the lane holds %v, want each once", got)
	}
}

// proxied listens, and passes every client to serve until the test ends.
func proxied(t *testing.T, serve func(context.Context, net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); listener.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			serving.Go(func() { serve(ctx, client) })
		}
	})
	return listener.Addr().String()
}
