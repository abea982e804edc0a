package stream_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// publish publishes n small submissions named by prefix. Like a client, it resends those refused
// because NATS is unreachable.
func (w *world) publish(p *stream.Publisher, prefix string, n int) {
	w.t.Helper()
	for i := range n {
		err := flow.ErrUnavailable
		for began := time.Now(); errors.Is(err, flow.ErrUnavailable) && time.Since(began) < time.Minute; {
			if _, err = p.Publish(context.Background(), submission(fmt.Sprintf("%s-%d", prefix, i), 100)); err != nil {
				time.Sleep(100 * time.Millisecond)
			}
		}
		fatal.When(w.t, err != nil, "publish: %v", err)
	}
}

// jetStream is nats.go's older interface, for an operator's actions.
func (w *world) jetStream() nats.JetStreamContext {
	w.t.Helper()
	js, err := w.nc.JetStream()
	fatal.If(w.t, err)
	return js
}

// recreate deletes a lane's stream and creates it with the same configuration.
func (w *world) recreate(name string) {
	w.t.Helper()
	js := w.jetStream()
	info, err := js.StreamInfo(name)
	fatal.If(w.t, err)
	fatal.If(w.t, js.DeleteStream(name))
	cfg := info.Config
	if _, err := js.AddStream(&cfg); err != nil {
		w.t.Fatal(err)
	}
}

func TestReadingResumesAfterARestart(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	w.publish(p, "before", 10)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := w.OpenLane(ctx, 0, 4, 0)
	fatal.If(t, err)
	defer c.Close()
	next := func(want uint64) {
		t.Helper()
		m, err := c.Next(ctx)
		if err != nil || m.Seq != want {
			t.Fatalf("next: got %d, %v, want %d", m.Seq, err, want)
		}
	}
	next(4)
	next(5)
	w.server.Restart()
	w.connected(ctx)
	w.publish(p, "after", 5)
	for seq := uint64(6); seq <= 15; seq++ {
		next(seq)
	}
}

func TestNextWaitsAsLongAsItMay(t *testing.T) {
	w := open(t, stream.Config{})
	c, err := w.OpenLane(t.Context(), 0, 0, 0)
	fatal.If(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want %v", err, context.DeadlineExceeded)
	}
	// Giving up has lost nothing.
	w.publish(w.publisher(), "id", 1)
	if m, err := c.Next(t.Context()); err != nil || m.Seq != 1 {
		t.Errorf("got %d, %v, want 1", m.Seq, err)
	}
}

func TestNothingIsPassedOverInSilence(t *testing.T) {
	js := func(w *world, f func(nats.JetStreamContext) error) {
		w.t.Helper()
		fatal.If(w.t, f(w.jetStream()))
	}
	for name, c := range map[string]struct {
		harm func(w *world)
		from uint64
	}{
		"messages purged before they were read": {func(w *world) {
			js(w, func(js nats.JetStreamContext) error {
				return js.PurgeStream("FLOW_0", &nats.StreamPurgeRequest{Sequence: 5})
			})
		}, 3},
		"everything purged": {func(w *world) {
			js(w, func(js nats.JetStreamContext) error { return js.PurgeStream("FLOW_0") })
		}, 10},
		"a stream that ends too early": {func(w *world) { w.recreate("FLOW_0") }, 10},
	} {
		t.Run(name, func(t *testing.T) {
			w := open(t, stream.Config{})
			w.publish(w.publisher(), "id", 10)
			c.harm(w)
			_, err := w.OpenLane(t.Context(), 0, c.from, 0)
			expect.Not(t, !errors.Is(err, flow.ErrGap), "got %v, want %v", err, flow.ErrGap)
		})
	}
}

// TestAReaderIsNotLeftInSilence: the consumer lives and reports no messages, as on a server whose
// copy of the lane has stopped following.
func TestAReaderIsNotLeftInSilence(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{Poll: 20 * time.Millisecond})
	p := w.publisher()
	w.publish(p, "before", 1)
	w.SetSilence(200 * time.Millisecond)
	all, err := w.OpenLane(t.Context(), 0, 1, 0)
	fatal.If(t, err)
	defer all.Close()
	changes, err := w.OpenChanges(t.Context(), 1)
	fatal.If(t, err)
	defer changes.Close()
	if e, err := all.Next(t.Context()); err != nil || e.Seq != 1 {
		t.Fatalf("got %d, %v, want the first message", e.Seq, err)
	}

	js, err := jetstream.New(w.nc)
	fatal.If(t, err)
	lane, err := js.Stream(t.Context(), "FLOW_0")
	fatal.If(t, err)
	paused := 0
	for consumer := range lane.ListConsumers(t.Context()).Info() {
		if _, err := lane.PauseConsumer(t.Context(), consumer.Name, time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		paused++
	}
	fatal.When(t, paused != 2, "%d consumers are paused, want both", paused)
	w.mixed(p, "after", 1)
	for name, c := range map[string]struct {
		reader *stream.Reader
		want   uint64
	}{"of all": {all, 2}, "of changes": {changes, 3}} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if e, err := c.reader.Next(ctx); err != nil || e.Seq != c.want {
			t.Errorf("the reader %s: got %d, %v, want %d", name, e.Seq, err, c.want)
		}
		cancel()
	}
}

// TestAScanReportsWhetherItIsComplete although its server may lag.
func TestAScanReportsWhetherItIsComplete(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	w.publish(w.publisher(), "id", 5)
	for name, c := range map[string]struct {
		subject   string
		seen, end uint64
		want      error
	}{
		"all":                             {"", 5, 5, nil},
		"all that were there":             {"", 4, 4, nil},
		"all of a subject":                {"flow.0.change.>", 0, 5, nil},
		"not the last":                    {"", 4, 5, stream.ErrSilent},
		"none of a subject that has some": {"flow.0.record", 0, 5, stream.ErrSilent},
	} {
		if err := w.SeenAll(t.Context(), "FLOW_0", c.subject, c.seen, c.end); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

func TestAGapInTheMiddleIsFound(t *testing.T) {
	w := open(t, stream.Config{})
	// A handmade lane that lets clients delete messages, to simulate a damaged disk.
	js := w.jetStream()
	if _, err := js.AddStream(&nats.StreamConfig{Name: "FLOW_1", Subjects: []string{"flow.1.record"}, Discard: nats.DiscardNew}); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, err := js.Publish("flow.1.record", []byte("[]")); err != nil {
			t.Fatal(err)
		}
	}
	fatal.If(t, js.DeleteMsg("FLOW_1", 6))
	c, err := w.OpenLane(t.Context(), 1, 1, 0)
	fatal.If(t, err)
	defer c.Close()
	for seq := uint64(1); seq <= 5; seq++ {
		if m, err := c.Next(t.Context()); err != nil || m.Seq != seq {
			t.Fatalf("got %d, %v, want %d", m.Seq, err, seq)
		}
	}
	for range 2 {
		if _, err := c.Next(t.Context()); !errors.Is(err, flow.ErrGap) {
			t.Fatalf("got %v, want %v", err, flow.ErrGap)
		}
	}
}

func TestAStreamMadeAgainWhileItIsReadIsFound(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	w.publish(p, "id", 3)
	c, err := w.OpenLane(t.Context(), 0, 1, 0)
	fatal.If(t, err)
	defer c.Close()
	if _, err := c.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.recreate("FLOW_0")
	w.publish(p, "new", 5)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		m, err := c.Next(ctx)
		if errors.Is(err, flow.ErrGap) {
			return
		}
		fatal.When(t, err != nil, "got %v, want %v", err, flow.ErrGap)
		if id := m.Messages[0].ID; id != fmt.Sprintf("id-%d", m.Seq-1) {
			t.Fatalf("message %s of the new stream was read as %d of the old", id, m.Seq)
		}
	}
}

// TestAMessageWithoutOurHeadersWasReceivedWhenItWasStored: 1970 would exceed any retention.
func TestAMessageWithoutOurHeadersWasReceivedWhenItWasStored(t *testing.T) {
	w := open(t, stream.Config{})
	for _, received := range []string{"", "soon"} {
		msg := &nats.Msg{Subject: "flow.0.record", Header: nats.Header{"Sluice-Received": {received}}, Data: []byte("[]")}
		if _, err := w.jetStream().PublishMsg(msg); err != nil {
			t.Fatal(err)
		}
	}
	first, again := w.all(0), w.all(0)
	for i, m := range first {
		if since := time.Since(m.Received); since < 0 || since > time.Minute {
			t.Errorf("message %d was received %v ago, want a moment", m.Seq, since)
		}
		if m.Received != again[i].Received {
			t.Errorf("message %d was received at %v, and when it is read again at %v", m.Seq, m.Received, again[i].Received)
		}
	}
}

func TestALaneDeletedWhileItIsReadIsFound(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{MaxBytes: 1 << 20})
	lane := w.addLane()
	c, err := w.OpenLane(t.Context(), lane, 1, 0)
	fatal.If(t, err)
	defer c.Close()
	fatal.If(t, w.jetStream().DeleteStream(stream.LaneName(lane)))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := c.Next(ctx); !errors.Is(err, flow.ErrGap) {
		t.Errorf("got %v, want %v", err, flow.ErrGap)
	}
}
