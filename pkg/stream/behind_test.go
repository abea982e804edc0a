package stream_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// gate is a proxy that buffers the client's writes while it is shut.
type gate struct {
	server string
	open   sync.RWMutex // locked while it is shut
}

// gated starts a gate, and returns the URL to connect to.
func gated(t *testing.T, server string) (*gate, string) {
	t.Helper()
	u, err := url.Parse(server)
	fatal.If(t, err)
	g := &gate{server: u.Host}
	return g, "nats://" + proxied(t, g.serve)
}

func (g *gate) serve(ctx context.Context, client net.Conn) {
	server, err := net.Dial("tcp", g.server)
	if err != nil {
		client.Close()
		return
	}
	hangUp := func() { client.Close(); server.Close() }
	defer context.AfterFunc(ctx, hangUp)()
	var passing sync.WaitGroup
	defer passing.Wait()
	defer hangUp()
	passing.Go(func() { defer hangUp(); _, _ = io.Copy(client, server) })
	for b := make([]byte, 64<<10); ; {
		n, err := client.Read(b)
		g.open.RLock()
		_, failed := server.Write(b[:n])
		g.open.RUnlock()
		if err != nil || failed != nil {
			return
		}
	}
}

// TestWhatLandsBehindAMoveMarkerIsNotAnsweredOK: a request was in TCP while its source moved away
// and back, so the list names the same lanes again. The request is void; a resend counts.
func TestWhatLandsBehindAMoveMarkerIsNotAnsweredOK(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	shut, url := gated(t, w.server.URL)
	slow := openAt(t, url, stream.Config{Fresh: 300 * time.Millisecond, Poll: 50 * time.Millisecond})
	p := slow.publisher()
	if _, err := p.Publish(t.Context(), submission("one", 10)); err != nil {
		t.Fatal(err)
	}
	w.addLane()
	w.sources()
	list := w.Sources()[0]
	shut.open.Lock()
	sent := make(chan error, 1)
	go func() {
		_, err := p.Publish(t.Context(), submission("late", 10))
		sent <- err
	}()
	time.Sleep(100 * time.Millisecond) // until the request is in flight
	moving, back := list, list
	moving.Revision, moving.Move, back.Revision = list.Revision+1, []int{0, 1}, list.Revision+2
	w.setSource(moving)
	if _, err := w.PutMarker(t.Context(), 0, moving); err != nil {
		t.Fatal(err)
	}
	w.setSource(back)
	time.Sleep(400 * time.Millisecond) // until the slow publisher's look-up is old
	shut.open.Unlock()
	var retry *flow.RetryError
	if err := <-sent; !errors.Is(err, flow.ErrUnavailable) || !errors.As(err, &retry) {
		t.Errorf("got %v, want %v with a retry delay", err, flow.ErrUnavailable)
	}
	if got, err := p.Publish(t.Context(), submission("late", 10)); err != nil || got.Replayed {
		t.Errorf("again: got %+v, %v", got, err)
	}
	var revisions []uint64
	for _, m := range w.all(0)[1:] {
		revisions = append(revisions, m.Revision)
	}
	if n := len(revisions); n != 3 || revisions[0] != moving.Revision || revisions[1] != list.Revision || revisions[2] != back.Revision {
		t.Errorf("the lane has messages of the revisions %v after %d, want the marker's, the late one's and the current one's", revisions, list.Revision)
	}
}
