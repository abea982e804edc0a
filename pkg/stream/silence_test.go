package stream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/broker"
	"sluice/pkg/dial"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

const (
	// silence is the api's setting.
	silence = 1200 * time.Millisecond

	// answerWithin is a submitter's longest wait for the answer that NATS is silent: 2 s, and 500
	// ms for a busy machine.
	answerWithin = 2500 * time.Millisecond
)

// sender prepares a submission of an id, and returns the func that sends it.
type sender func(w *world, p *stream.Publisher, id string) func(context.Context) error

func sends(sizes ...int) sender {
	return func(_ *world, p *stream.Publisher, id string) func(context.Context) error {
		sub := submission(id, sizes...)
		return func(ctx context.Context) error {
			_, err := p.Publish(ctx, sub)
			return err
		}
	}
}

func changes(_ *world, p *stream.Publisher, id string) func(context.Context) error {
	c := patch(id, id, nil)
	return func(ctx context.Context) error {
		_, _, err := p.PublishChange(ctx, c)
		return err
	}
}

// looksFirst is a change that depends on the previous one.
func looksFirst(w *world, p *stream.Publisher, id string) func(context.Context) error {
	return func(ctx context.Context) error {
		c := patch(id, id, nil)
		last, err := w.LastChange(ctx, c.Target)
		if err != nil {
			return err
		}
		c.Expected = &last.Seq
		_, _, err = p.PublishChange(ctx, c)
		return err
	}
}

// TestOpeningOutlivesAServerThatHasFallenBehind: a program that starts while one of three
// servers lacks an entry waits, as it does for a leader.
func TestOpeningOutlivesAServerThatHasFallenBehind(t *testing.T) {
	t.Parallel()
	for _, err := range []error{stream.ErrSilent, fmt.Errorf("look up sources: %w", stream.ErrSilent)} {
		expect.Not(t, !stream.Passes(err), "opening ends with %v", err)
	}
}

// deposed is a JetStream whose former leader still answers, and lacks every message.
type deposed struct{ broker.Broker }

func (deposed) Get(context.Context, string, uint64, string) (*jetstream.RawStreamMsg, error) {
	return nil, jetstream.ErrMsgNotFound
}

// TestAFormerLeaderHidesNoRequest: an ingester that could not read a request would store its repeat.
func TestAFormerLeaderHidesNoRequest(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	fatal.If(t, sends(10)(w, w.publisher(), "id")(t.Context()))
	js, err := broker.OverNATS(w.nc)
	fatal.If(t, err)
	s := stream.NewOver(deposed{js}, stream.Config{}, quiet(), prometheus.NewRegistry())
	for seq, want := range map[uint64]int{1: 1, 2: 0} {
		got := 0
		fatal.If(t, s.Heads(t.Context(), 0, seq, seq, func(*flow.Entry) error { got++; return nil }))
		expect.Equal(t, fmt.Sprint("messages with number ", seq), want, got)
	}
}

// TestAFormerLeaderHidesNoSetBack: a lane was set back and refilled. An ingester that took the answer of a former leader
// for a purge would resume at its checkpoint, and skip the messages refilled before it.
func TestAFormerLeaderHidesNoSetBack(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	w.publish(w.publisher(), "id", 10)
	pos := w.swapTo(0, 5)
	pos.Stamp++ // of another message with this number
	_, err := stream.NewLaneStates(w.Stream).CompareAndSwap(t.Context(), 0, pos)
	fatal.If(t, err)
	js, err := broker.OverNATS(w.nc)
	fatal.If(t, err)
	s := stream.NewOver(deposed{js}, stream.Config{}, quiet(), prometheus.NewRegistry())
	_, err = stream.NewLaneStates(s).Read(t.Context(), 0)
	expect.Not(t, !errors.Is(err, flow.ErrUnavailable), "a message that the server lacks: got %v, want that it is read again", err)

	fatal.If(t, w.jetStream().PurgeStream(stream.LaneName(0), &nats.StreamPurgeRequest{Sequence: 6}))
	_, err = stream.NewLaneStates(s).Read(t.Context(), 0)
	expect.Not(t, err != nil, "a purged message: got %v", err)
}

// orphaned is a JetStream whose consumers are lost with their server, while the connection to
// another server lasts.
type orphaned struct{ broker.Broker }

func (o orphaned) Read(ctx context.Context, name string, from broker.From) (broker.Reading, error) {
	r, err := o.Broker.Read(ctx, name, from)
	return lost{r}, err
}

type lost struct{ broker.Reading }

func (lost) Next(ctx context.Context) (broker.Message, error) {
	<-ctx.Done()
	return broker.Message{}, ctx.Err()
}

func (lost) Left(context.Context) (pending, sent uint64, err error) {
	return 0, 0, jetstream.ErrConsumerNotFound
}

// TestAScanEndsWithItsConsumer: a command waited forever for the messages of a lost consumer.
func TestAScanEndsWithItsConsumer(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	fatal.If(t, sends(10)(w, w.publisher(), "id")(t.Context()))
	js, err := broker.OverNATS(w.nc)
	fatal.If(t, err)
	s := stream.NewOver(orphaned{js}, stream.Config{}, quiet(), prometheus.NewRegistry())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = s.Heads(ctx, 0, 1, 2, func(*flow.Entry) error { return nil })
	expect.Not(t, !errors.Is(err, flow.ErrUnavailable) || ctx.Err() != nil, "got %v, want that the scan fails", err)
}

// TestAFrozenServerIsAbandoned: its kernel accepts connections and some bytes, and it never
// answers. All calls, later ones too, fail in time; afterwards every message is stored once.
func TestAFrozenServerIsAbandoned(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  stream.Config
		n    int // concurrent
		send sender
		each int  // messages of one
		busy bool // exceeds the queue of a lane
	}{
		"small ones, which gather":       {stream.Config{}, 40, sends(10), 1, false},
		"big ones":                       {stream.Config{}, 4, sends(400 << 10), 1, false},
		"several parts":                  {stream.Config{}, 4, sends(10, 100<<10, 100<<10, 10), 4, false},
		"more than the connection takes": {stream.Config{}, 200, sends(400 << 10), 1, true},
		"changes":                        {stream.Config{}, 4, changes, 1, false},
		"changes that look first":        {stream.Config{}, 4, looksFirst, 1, false},
		"while lanes are looked up":      {stream.Config{Poll: 5 * time.Millisecond, Fresh: 25 * time.Millisecond}, 20, sends(10), 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := natstest.StartProcess(t)
			w := openBy(t, dial.Config{URL: p.URL, Name: "test", Silence: silence}, c.cfg)
			pub := w.publisher()
			fatal.If(t, c.send(w, pub, "before")(t.Context()))
			var sending [3][]func(context.Context) error
			for turn := range sending {
				for i := range c.n {
					sending[turn] = append(sending[turn], c.send(w, pub, fmt.Sprintf("id-%d-%d", turn, i)))
				}
			}
			p.Pause()
			paused := time.Now()
			var mu sync.Mutex
			var longest time.Duration
			var all sync.WaitGroup
			for turn, after := range []time.Duration{0, 700 * time.Millisecond, 3 * time.Second} {
				for _, send := range sending[turn] {
					all.Go(func() {
						time.Sleep(time.Until(paused.Add(after)))
						begun := time.Now()
						err := send(t.Context())
						took := time.Since(begun)
						var retry *flow.RetryError
						known := errors.Is(err, flow.ErrUnavailable) || c.busy && errors.Is(err, flow.ErrBusy)
						if !known || !errors.As(err, &retry) || took > answerWithin {
							t.Errorf("%v later: got %v after %v, want %v with a retry delay within %v", after, err, took, flow.ErrUnavailable, answerWithin)
						}
						mu.Lock()
						defer mu.Unlock()
						longest = max(longest, took)
					})
				}
			}
			all.Wait()
			if n := value(t, w.reg, "sluice_stream_publishes_total", map[string]string{"outcome": "busy"}); (n > 0) != c.busy {
				t.Errorf("%v were refused because the lane was busy", n)
			}
			p.Resume()
			resumed := time.Now()
			w.connected(t.Context())
			t.Logf("answered within %v, connected again %v after it resumed", longest, time.Since(resumed))
			for _, send := range slices.Concat(sending[:]...) {
				all.Go(func() {
					err := send(t.Context())
					for err != nil && time.Since(resumed) < time.Minute {
						time.Sleep(100 * time.Millisecond)
						err = send(t.Context())
					}
					expect.Not(t, err != nil, "again: %v", err)
				})
			}
			all.Wait()
			w.hold(c.each * (1 + 3*c.n))
		})
	}
}

// hold fails unless lane 0 has n distinct messages.
func (w *world) hold(n int) {
	w.t.Helper()
	expect.Equal(w.t, "messages are there that differ", n, len(w.once(0)))
}

// TestOneOfThreeServersFreezes: the client continues over another one, and messages in flight
// are stored once.
func TestOneOfThreeServersFreezes(t *testing.T) {
	url, servers := natstest.StartProcesses(t, 3)
	w := openBy(t, dial.Config{URL: url, Name: "test", Silence: silence}, stream.Config{Replicas: 3})
	pub := w.publisher()
	var at *natstest.Process
	for _, s := range servers {
		if s.URL == w.nc.ConnectedUrl() {
			at = s
		}
	}
	if at == nil {
		t.Fatalf("connected to %s, which is none of them", w.nc.ConnectedUrl())
	}
	at.Pause()
	defer at.Resume()
	paused := time.Now()
	for i, send := range []sender{sends(10), sends(400 << 10), sends(10, 10)} {
		for {
			begun := time.Now()
			err := send(w, pub, fmt.Sprintf("id-%d", i))(t.Context())
			if err == nil {
				break
			}
			if !errors.Is(err, flow.ErrUnavailable) || time.Since(paused) > time.Minute {
				t.Fatalf("got %v after %v", err, time.Since(begun))
			}
		}
		t.Logf("the submission %d is stored %v after the server stopped", i, time.Since(paused))
	}
	expect.Not(t, w.nc.ConnectedUrl() == at.URL, "still connected to %s", at.URL)
	at.Resume() // delivers the messages it had received before
	w.hold(4)
}
