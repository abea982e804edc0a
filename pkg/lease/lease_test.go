package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/dial"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/lease"
	"sluice/pkg/stream"
)

// world is a deployment on a real server, as one process reaches it.
type world struct {
	*stream.Stream
	server *natstest.Server
	nc     *nats.Conn
}

func open(t *testing.T) *world { return openOn(t, natstest.Start(t)) }

func openOn(t *testing.T, server *natstest.Server) *world {
	t.Helper()
	log, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	nc, err := dial.Connect(dial.Config{URL: server.URL, Name: "test"}, log, reg)
	fatal.If(t, err)
	t.Cleanup(nc.Close)
	opened, err := stream.Open(t.Context(), nc, stream.Config{MaxBytes: 1 << 20, Poll: 50 * time.Millisecond}, log, reg)
	fatal.If(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- opened.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return &world{opened, server, nc}
}

func (w *world) leases(instance string) *lease.Leases {
	return lease.New(lease.Config{Instance: instance, Bucket: w.Leases, TTL: stream.LeaseTTL, Lanes: w.LaneNumbers}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}

// board records the owner of each lane, and fails on a second one.
type board struct {
	t  *testing.T
	mu sync.Mutex
	on map[int]string // lane → instance
}

func (b *board) enter(instance string, lane int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if other, ok := b.on[lane]; ok {
		b.t.Errorf("%s began lane %d while %s works on it", instance, lane, other)
	}
	b.on[lane] = instance
}

func (b *board) exit(lane int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.on, lane)
}

// shares counts the lanes of each instance.
func (b *board) shares() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := map[string]int{}
	for _, instance := range b.on {
		m[instance]++
	}
	return m
}

// wait waits until want holds of the shares, and returns the time taken.
func (b *board) wait(what string, limit time.Duration, want func(map[string]int) bool) time.Duration {
	b.t.Helper()
	begun := time.Now()
	for !want(b.shares()) {
		if time.Since(begun) > limit {
			b.t.Fatalf("%s: after %v the shares are %v", what, limit, b.shares())
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(begun)
}

type worker struct {
	*world
	stop func() // cleanly
}

func (b *board) join(server *natstest.Server, instance string) *worker {
	w := openOn(b.t, server)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := w.leases(instance).Run(ctx, func(ctx context.Context, lane int) error {
			b.enter(instance, lane)
			defer b.exit(lane)
			<-ctx.Done()
			time.Sleep(20 * time.Millisecond) // finishes its current work
			return nil
		})
		expect.Not(b.t, err != nil, "%s: %v", instance, err)
	}()
	stop := sync.OnceFunc(func() { cancel(); <-done })
	b.t.Cleanup(stop)
	return &worker{w, stop}
}

func TestLanesAreShared(t *testing.T) {
	t.Parallel()
	w := open(t)
	for range 3 {
		if _, err := w.AddLane(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	b := &board{t: t, on: map[int]string{}}
	even := func(shares map[string]int, instances ...string) bool {
		sum := 0
		for _, i := range instances {
			if n := shares[i]; n < 4/len(instances) || n > (3+len(instances))/len(instances) {
				return false
			}
			sum += shares[i]
		}
		return sum == 4 && len(shares) == len(instances)
	}

	a := b.join(w.server, "a")
	b.wait("a alone", 5*time.Second, func(s map[string]int) bool { return even(s, "a") })
	b.join(w.server, "b")
	b.wait("a and b", 10*time.Second, func(s map[string]int) bool { return even(s, "a", "b") })
	c := b.join(w.server, "c")
	b.wait("a, b and c", 10*time.Second, func(s map[string]int) bool { return even(s, "a", "b", "c") })

	// The lanes of a clean stop are taken immediately.
	a.stop()
	if took := b.wait("b and c", 5*time.Second, func(s map[string]int) bool { return even(s, "b", "c") }); took > 2*time.Second {
		t.Errorf("taking over from an instance that stopped took %v, want at most 2s", took)
	}
	// An added lane is taken.
	if n, err := w.AddLane(t.Context()); err != nil || n != 4 {
		t.Fatalf("added lane %d, %v, want 4", n, err)
	}
	b.wait("b and c with a fifth lane", 10*time.Second, func(s map[string]int) bool { return s["b"]+s["c"] == 5 })
	c.stop()
	b.wait("b alone", 5*time.Second, func(s map[string]int) bool { return s["b"] == 5 })
}

// TestALaneOfAnInstanceThatDiedIsTakenOver even if a server whose clock was set back by ten
// minutes keeps its lease for that long.
func TestALaneOfAnInstanceThatDiedIsTakenOver(t *testing.T) {
	for _, setBack := range []bool{false, true} {
		t.Run(fmt.Sprintf("clock set back %t", setBack), func(t *testing.T) {
			t.Parallel()
			w := open(t)
			js, err := w.nc.JetStream()
			fatal.If(t, err)
			leases, err := js.StreamInfo("KV_" + stream.LeaseBucket)
			fatal.If(t, err)
			b := &board{t: t, on: map[int]string{}}
			a := b.join(w.server, "a")
			b.wait("a alone", 5*time.Second, func(s map[string]int) bool { return s["a"] == 1 })
			b.join(w.server, "b")
			if setBack {
				leases.Config.MaxAge = 10 * time.Minute
				if _, err := js.UpdateStream(&leases.Config); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(3 * time.Second) // b sees the renewals
			if got := b.shares(); got["a"] != 1 || got["b"] != 0 {
				t.Fatalf("a lane that is held moved: %v", got)
			}
			a.nc.Close() // permanently; its work ends by itself
			took := b.wait("b alone", 20*time.Second, func(s map[string]int) bool { return s["b"] == 1 })
			if t.Logf("taken over after %v", took); !setBack && took > 15*time.Second {
				t.Error("want at most 15s")
			}
		})
	}
}

func TestLeasesOutliveARestartOfTheServer(t *testing.T) {
	t.Parallel()
	w := open(t)
	b := &board{t: t, on: map[int]string{}}
	b.join(w.server, "a")
	b.wait("a alone", 5*time.Second, func(s map[string]int) bool { return s["a"] == 1 })
	w.server.Restart()
	for range 60 {
		time.Sleep(100 * time.Millisecond)
		fatal.When(t, b.shares()["a"] != 1, "the lane was given up")
	}
	// Other instances still see it held, and take it after its release.
	second := b.join(w.server, "b")
	time.Sleep(3 * time.Second)
	if got := b.shares(); got["a"] != 1 || got["b"] != 0 {
		t.Fatalf("a lane that is held moved: %v", got)
	}
	second.stop()
}

// TestLanesAreSharedAfterTheBucketWasSetBack: revisions restart, as after a restore, and watchers
// wait for higher ones.
func TestLanesAreSharedAfterTheBucketWasSetBack(t *testing.T) {
	t.Parallel()
	w := open(t)
	if _, err := w.AddLane(t.Context()); err != nil {
		t.Fatal(err)
	}
	js, err := w.nc.JetStream()
	fatal.If(t, err)
	for range 500 {
		if _, err := js.Publish("$KV."+stream.LeaseBucket+".other", nil); err != nil {
			t.Fatal(err)
		}
	}
	b := &board{t: t, on: map[int]string{}}
	b.join(w.server, "a")
	b.wait("a alone", 5*time.Second, func(s map[string]int) bool { return s["a"] == 2 })
	bucket := "KV_" + stream.LeaseBucket
	info, err := js.StreamInfo(bucket)
	if err == nil {
		err = js.DeleteStream(bucket)
	}
	if err == nil {
		_, err = js.AddStream(&info.Config)
	}
	fatal.If(t, err)
	time.Sleep(6 * time.Second) // a finds its leases missing, and takes them again
	b.join(w.server, "b")
	even := func(s map[string]int) bool { return s["a"] == 1 && s["b"] == 1 }
	took := b.wait("a and b", 30*time.Second, even)
	t.Logf("shared after %v", took)
}

func TestWorkThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := open(t)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	calls := 0
	err := w.leases("a").Run(ctx, func(context.Context, int) error {
		if calls++; calls == 2 {
			cancel()
		}
		return errors.New("it failed")
	})
	expect.Not(t, err != nil || calls != 2, "got %d calls, %v, want 2", calls, err)
}

func TestAnInstanceNeedsAName(t *testing.T) {
	w := open(t)
	for _, name := range []string{"", "a b", "a.b", "ä", "*"} {
		if err := w.leases(name).Run(t.Context(), nil); err == nil {
			t.Errorf("%q was taken", name)
		}
	}
}
