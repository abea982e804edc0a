package stream_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/dial"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// world is one deployment on a real server.
type world struct {
	*stream.Stream
	t      testing.TB
	server *natstest.Server
	nc     *nats.Conn
	reg    *prometheus.Registry
}

// open starts a server and opens a Stream on it.
func open(t testing.TB, cfg stream.Config) *world {
	t.Helper()
	return openOn(t, natstest.Start(t), cfg)
}

// openOn opens another Stream on a server, as another process would.
func openOn(t testing.TB, server *natstest.Server, cfg stream.Config) *world {
	t.Helper()
	w := openAt(t, server.URL, cfg)
	w.server = server
	return w
}

// openAt opens a Stream on the servers at a URL.
func openAt(t testing.TB, url string, cfg stream.Config) *world {
	t.Helper()
	return openBy(t, dial.Config{URL: url, Name: "test"}, cfg)
}

// openBy opens a Stream over a connection of its own.
func openBy(t testing.TB, connection dial.Config, cfg stream.Config) *world {
	t.Helper()
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 256 << 20
	}
	if cfg.Poll == 0 {
		cfg.Poll = 50 * time.Millisecond
	}
	reg := prometheus.NewRegistry()
	nc, err := dial.Connect(connection, quiet(), reg)
	fatal.If(t, err)
	t.Cleanup(nc.Close)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := stream.Open(ctx, nc, cfg, quiet(), reg)
	fatal.When(t, err != nil, "open: %v", err)
	w := &world{Stream: s, t: t, nc: nc, reg: reg}
	w.run(s.Run)
	return w
}

func (w *world) run(f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("run: %v", err)
		}
	})
}

func (w *world) publisher() *stream.Publisher { return stream.NewPublisher(w.Stream) }

// submission is a submission of chunks of the given sizes, one record each.
func submission(id string, sizes ...int) *flow.Submission {
	sub := &flow.Submission{
		ID: id, Hash: "hash of " + id, Subject: "engine-a", Source: "cluster-a", TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		Received: time.UnixMilli(1_700_000_000_123).UTC(),
	}
	chunks := flow.Chunks{}
	for i, size := range sizes {
		body := make([]byte, size)
		for j := range body {
			body[j] = byte(i + j*7)
		}
		copy(body, fmt.Sprintf("%s/%d ", id, i))
		chunks = append(chunks, flow.Chunk{Body: body, Records: 1, Encoding: flow.EncodingS2})
	}
	sub.Records = chunks
	return sub
}

// chunksOf are the chunks of a submission.
func chunksOf(sub *flow.Submission) flow.Chunks { return sub.Records.(flow.Chunks) }

// entries reads all entries of a lane, without the stream's timestamps.
func (w *world) entries(lane int) []flow.Entry {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w.connected(ctx)
	fatal.If(w.t, w.Refresh(ctx))
	var state stream.Lane
	for _, l := range w.Lanes() {
		if l.Number == lane {
			state = l
		}
	}
	if state.Messages == 0 {
		return nil
	}
	c, err := w.OpenLane(ctx, lane, state.First, 0)
	for errors.Is(err, flow.ErrUnavailable) && ctx.Err() == nil { // a cluster is choosing its leader
		time.Sleep(100 * time.Millisecond)
		c, err = w.OpenLane(ctx, lane, state.First, 0)
	}
	fatal.When(w.t, err != nil, "open lane %d: %v", lane, err)
	defer c.Close()
	var list []flow.Entry
	for uint64(len(list)) < state.Last-state.First+1 {
		e, err := c.Next(ctx)
		fatal.When(w.t, err != nil, "read lane %d after %d messages: %v", lane, len(list), err)
		if e.Err != nil || e.Stored.IsZero() {
			w.t.Fatalf("message %d, of %v: %v", e.Seq, e.Stored, e.Err)
		}
		e.Stored = time.Time{}
		list = append(list, e)
	}
	return list
}

// all are a lane's requests, or its changes and move markers, in order.
func (w *world) all(lane int) (list []flow.Message) {
	w.t.Helper()
	for _, e := range w.entries(lane) {
		list = append(list, e.Messages...)
	}
	return list
}

// once is all without duplicates, as an ingester would store it.
func (w *world) once(lane int) (list []flow.Message) {
	w.t.Helper()
	seen := map[string]bool{}
	for _, m := range w.all(lane) {
		if name := chunkOf(m); !seen[name] {
			seen[name] = true
			list = append(list, m)
		}
	}
	return list
}

func chunkOf(m flow.Message) string {
	if m.From == 0 {
		return m.ID
	}
	return fmt.Sprintf("%s.%d", m.ID, m.From)
}

func ids(list []flow.Message) []string {
	var out []string
	for _, m := range list {
		out = append(out, chunkOf(m))
	}
	return out
}

// connected waits until the connection is back.
func (w *world) connected(ctx context.Context) {
	w.t.Helper()
	for !w.nc.IsConnected() {
		select {
		case <-ctx.Done():
			w.t.Fatal("no connection")
		case <-time.After(10 * time.Millisecond):
		}
	}
}
