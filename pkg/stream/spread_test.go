package stream_test

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// spreadable is how lanes are kept of which sources are moved in a test.
func spreadable() stream.Config {
	return stream.Config{MaxBytes: 16 << 20, DuplicateWindow: 100 * time.Millisecond, Fresh: 250 * time.Millisecond}
}

// storing moves the positions of all lanes to their ends until the test is
// over, as an ingester does.
func (w *world) storing() {
	w.run(func(ctx context.Context) error {
		for ctx.Err() == nil {
			for _, lane := range w.Lanes() {
				w.stored(ctx, lane)
			}
			select {
			case <-ctx.Done():
			case <-time.After(30 * time.Millisecond):
			}
		}
		return nil
	})
}

// stored moves the position of a lane to its end, if that can be done.
func (w *world) stored(ctx context.Context, lane stream.Lane) {
	positions := stream.NewLaneStates(w.Stream)
	if pos, err := positions.Read(ctx, lane.Number); err == nil && pos.Done < lane.Last {
		pos.Owner, pos.StreamID, pos.Done = "test", lane.StreamID(), lane.Last
		_, _ = positions.CompareAndSwap(ctx, lane.Number, pos) // the next try will do
	}
}

// TestASourceIsSpreadUnderLoad: two processes send its records, one by one and
// again until they are taken.
func TestASourceIsSpreadUnderLoad(t *testing.T) {
	t.Parallel()
	w := open(t, spreadable())
	w.storing()
	publishers := []*stream.Publisher{w.publisher(), openOn(t, w.server, spreadable()).publisher()}
	fatal.If(t, sendOne(publishers[0], "cluster-a", "first-p1", 1)) // the source is known before lanes are added
	var held, sent atomic.Int64
	sent.Add(1)
	var clients sync.WaitGroup
	defer clients.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for client := range 4 {
		clients.Go(func() {
			p := publishers[client%2]
			for n := 0; ctx.Err() == nil; n++ {
				for partition := 1; partition <= 3; partition++ {
					id := fmt.Sprintf("c%d-%d-p%d", client, n, partition)
					for {
						err := sendOne(p, "cluster-a", id, partition)
						if err == nil {
							sent.Add(1)
							break
						}
						if !errors.Is(err, flow.ErrHeld) && !errors.Is(err, flow.ErrUnavailable) { // a busy machine answers late
							t.Errorf("%s: %v", id, err)
							return
						}
						held.Add(1)
						time.Sleep(20 * time.Millisecond)
					}
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	w.addLane()
	w.addLane()
	w.sources()
	met := w.Sources()[0].Revision
	var said []string
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	fatal.If(t, w.Spread(t.Context(), stream.Spreading{Source: "cluster-a", Lanes: []int{0, 1, 2}, Say: say}))
	before := sent.Load()
	for sent.Load() < before+500 && !t.Failed() {
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	clients.Wait()
	if held.Load() == 0 || len(said) < 3 {
		t.Errorf("%d tries were refused, and %q said: the test shows nothing", held.Load(), said)
	}
	stored, markers := map[string]int{}, 0
	for number, lane := range [][]flow.Message{w.once(0), w.once(1), w.once(2)} {
		after := 0
		for _, m := range lane {
			if m.Topic == stream.MoveTopic(number) {
				if markers++; number != 0 || m.Source != "cluster-a" || m.Revision != met+1 {
					t.Errorf("lane %d has a move marker of %s, revision %d", number, m.Source, m.Revision)
				}
				continue
			}
			stored[m.ID]++
			want, revision := fmt.Sprintf("-p%d", cmp.Or(number, 3)), met+2
			if number == 0 && markers == 0 {
				want, revision = "-p", met // all of them, by the list with which the source was met
			} else {
				after++
			}
			if !strings.Contains(m.ID, want) || m.Revision != revision {
				t.Errorf("%s, routed by revision %d, is in lane %d", m.ID, m.Revision, number)
			}
		}
		expect.Not(t, after < 50, "lane %d took %d records after the move: the test shows nothing", number, after)
	}
	for id, n := range stored {
		expect.Not(t, n > 1, "%s is stored %d times", id, n)
	}
	if got := int64(len(stored)); got != sent.Load() || markers != 1 {
		t.Errorf("%d records are stored, %d were acknowledged, with %d move markers", got, sent.Load(), markers)
	}
}

// sendOne sends a record of a partition.
func sendOne(p *stream.Publisher, source, id string, partition int) error {
	sub := submission(id)
	sub.Source, sub.Records = source, modulo{id, partition}
	_, err := p.Publish(context.Background(), sub)
	return err
}

// met makes a source of w known, on lane 0 alone, and adds a lane.
func (w *world) met() {
	w.t.Helper()
	w.publish(w.publisher(), "met", 1)
	w.addLane()
}

// TestASpreadThatIsNeverStoredGivesUp: ClickHouse is away.
func TestASpreadThatIsNeverStoredGivesUp(t *testing.T) {
	t.Parallel()
	w := open(t, spreadable())
	w.met()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	refused := false
	marked := func(format string, args ...any) {
		w.sources()
		_, err := w.publisher().Publish(t.Context(), of("cluster-a", "meanwhile", 0))
		refused = refused || errors.Is(err, flow.ErrHeld)
	}
	err := w.Spread(ctx, stream.Spreading{Source: "cluster-a", Lanes: []int{0, 1}, Say: marked})
	expect.Not(t, !errors.Is(err, context.DeadlineExceeded), "got %v, want %v", err, context.DeadlineExceeded)
	expect.Not(t, !refused, "nothing was refused meanwhile")
	expect.Equal(t, "sources", map[string][]int{"cluster-a": {0}}, w.sources())
	if _, err := w.publisher().Publish(t.Context(), of("cluster-a", "afterwards", 0)); err != nil {
		t.Errorf("after it was given up: %v", err)
	}
}

// TestASpreadIsKilledAtEveryStep, and begun anew.
func TestASpreadIsKilledAtEveryStep(t *testing.T) {
	for step := 1; step <= 3; step++ {
		t.Run(fmt.Sprintf("after step %d", step), func(t *testing.T) {
			t.Parallel()
			w := open(t, spreadable())
			w.met()
			w.storing()
			n := 0
			killed := make(chan struct{})
			go func() { // as a process that ends right there
				defer close(killed)
				err := w.Spread(t.Context(), stream.Spreading{Source: "cluster-a", Lanes: []int{0, 1}, Say: func(string, ...any) {
					if n++; n == step {
						runtime.Goexit()
					}
				}})
				t.Errorf("it went on: %v", err)
			}()
			<-killed
			w.sources()
			err := sendOne(w.publisher(), "cluster-a", "between", 1)
			if done := step == 3; errors.Is(err, flow.ErrHeld) == done {
				t.Errorf("between: got %v", err)
			}
			fatal.If(t, w.Spread(t.Context(), stream.Spreading{Source: "cluster-a", Lanes: []int{0}}))
			expect.Equal(t, "sources", map[string][]int{"cluster-a": {0}}, w.sources())
			expect.NoError(t, sendOne(w.publisher(), "cluster-a", "afterwards", 1))
		})
	}
}

func TestAMarkIsTakenBack(t *testing.T) {
	w := open(t, spreadable())
	w.met()
	w.setSource(stream.Source{Name: "cluster-a", Lanes: []int{0}, Move: []int{0, 1}})
	kv, err := w.jetStream().KeyValue(stream.SourceBucket)
	fatal.If(t, err)
	for range 2 { // with a move, and while the write of one is on its way
		late, err := kv.Get("s" + base64.RawURLEncoding.EncodeToString([]byte("cluster-a")))
		fatal.If(t, err)
		fatal.If(t, w.Stay(t.Context(), "cluster-a"))
		if _, err := kv.Update(late.Key(), late.Value(), late.Revision()); err == nil {
			t.Error("a write that lands after the source was set to stay takes effect")
		}
	}
	w.sources()
	expect.NoError(t, sendOne(w.publisher(), "cluster-a", "afterwards", 1))
}

// TestOneThatSleptThroughASpread: it was frozen before the source was marked,
// and knows nothing.
func TestOneThatSleptThroughASpread(t *testing.T) {
	t.Parallel()
	w := open(t, spreadable())
	w.met()
	w.storing()
	slept, err := stream.Open(t.Context(), w.nc, spreadable(), quiet(), prometheus.NewRegistry())
	fatal.If(t, err)
	p := stream.NewPublisher(slept)
	asked := 0
	ask := func(string, ...any) {
		if asked++; asked == 2 { // the marker is there: whatever it sends now would be behind it
			if err := sendOne(p, "cluster-a", "asleep", 1); !errors.Is(err, flow.ErrHeld) {
				t.Errorf("during the move: got %v, want %v", err, flow.ErrHeld)
			}
		}
	}
	fatal.If(t, w.Spread(t.Context(), stream.Spreading{Source: "cluster-a", Lanes: []int{0, 1}, Say: ask}))
	time.Sleep(300 * time.Millisecond) // until what it has seen is old
	fatal.If(t, sendOne(p, "cluster-a", "awake", 1))
	if got := ids(w.all(1)); !slices.Equal(got, []string{"awake"}) || asked < 2 {
		t.Errorf("lane 1 holds %v, want what was sent after the move", got)
	}
}

func TestASpreadThatCanNotBe(t *testing.T) {
	w := open(t, spreadable())
	w.met()
	for name, c := range map[string]struct {
		to   stream.Spreading
		want string
	}{
		"a source that was never seen": {stream.Spreading{Source: "x", Lanes: []int{0}}, "does not exist yet"},
		"a lane there is not":          {stream.Spreading{Source: "cluster-a", Lanes: []int{0, 7}}, "lane 7 does not exist"},
		"a lane twice":                 {stream.Spreading{Source: "cluster-a", Lanes: []int{1, 1}}, "named twice"},
		"another first lane":           {stream.Spreading{Source: "cluster-a", Lanes: []int{1, 0}}, "lane 0 must stay the first lane"},
		"no lane":                      {stream.Spreading{Source: "cluster-a"}, "no lanes are given"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := w.Spread(t.Context(), c.to); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if err := w.Spread(t.Context(), stream.Spreading{Source: "cluster-a", Lanes: []int{0}}); err != nil {
		t.Errorf("to where it is: %v", err)
	}
	expect.Equal(t, "sources", map[string][]int{"cluster-a": {0}}, w.sources())
}

// TestTwoMoveASourceAtOnce: one of them does.
func TestTwoMoveASourceAtOnce(t *testing.T) {
	t.Parallel()
	w := open(t, spreadable())
	w.met()
	w.storing()
	var both sync.WaitGroup
	var done atomic.Int64
	w.addLane()
	for _, lanes := range [][]int{{0, 1}, {0, 1, 2}} {
		both.Go(func() {
			err := w.Spread(t.Context(), stream.Spreading{Source: "cluster-a", Lanes: lanes})
			if err == nil {
				done.Store(int64(len(lanes)))
				return
			}
			expect.Not(t, !strings.Contains(err.Error(), "another process"), "to %v: %v", lanes, err)
		})
	}
	both.Wait()
	if got := w.sources()["cluster-a"]; int64(len(got)) != done.Load() {
		t.Errorf("it has lanes %v, and the one who says so gave it %d", got, done.Load())
	}
	expect.NoError(t, sendOne(w.publisher(), "cluster-a", "afterwards", 1))
}

// TestASpreadOutlivesTheServers: each of three servers stops and comes back
// while a source is moved.
func TestASpreadOutlivesTheServers(t *testing.T) {
	t.Parallel()
	cluster := natstest.StartCluster(t, 3)
	cfg := spreadable()
	cfg.Replicas = 3
	w := openAt(t, cluster.URL, cfg)
	w.met()
	restarts := make(chan struct{})
	go func() {
		defer close(restarts)
		for i := range 3 {
			cluster.Stop(i)
			time.Sleep(300 * time.Millisecond)
			cluster.Start(i)
			time.Sleep(time.Second)
		}
	}()
	var err error
	for try := range 5 { // an attempt may fail; the next one begins anew
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		stored := func(string, ...any) {
			if err := w.Refresh(ctx); err == nil {
				w.stored(ctx, w.Lanes()[0])
			}
		}
		err = w.Spread(ctx, stream.Spreading{Source: "cluster-a", Lanes: []int{0, 1}, Say: stored})
		cancel()
		if err == nil {
			break
		}
		t.Logf("try %d: %v", try, err)
	}
	<-restarts
	fatal.If(t, err)
	expect.Equal(t, "sources", map[string][]int{"cluster-a": {0, 1}}, w.sources())
}

// TestASpreadOutlivesNATS: the server goes away again and again while a source
// is moved, also in the middle of questions, and the move goes on.
func TestASpreadOutlivesNATS(t *testing.T) {
	t.Parallel()
	w := open(t, spreadable())
	fatal.If(t, sendOne(w.publisher(), "cluster-a", "one", 1))
	w.addLane()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	moved := make(chan error, 1)
	go func() { moved <- w.Spread(ctx, stream.Spreading{Source: "cluster-a", Lanes: []int{0, 1}}) }()
	for range 4 {
		time.Sleep(700 * time.Millisecond)
		w.server.Stop()
		time.Sleep(300 * time.Millisecond)
		w.server.Restart()
	}
	w.storing()
	select {
	case err := <-moved:
		fatal.If(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("the source is not moved half a minute after NATS is back")
	}
	p := w.publisher()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := sendOne(p, "cluster-a", "two", 1)
		if err == nil {
			return
		}
		fatal.When(t, !errors.Is(err, flow.ErrHeld) || time.Now().After(deadline), "a record of the source is not taken: %v", err)
	}
}
