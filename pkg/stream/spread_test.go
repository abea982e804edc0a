package stream_test

import (
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

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// spreadable is the configuration of lanes whose sources are moved.
func spreadable() stream.Config {
	return stream.Config{MaxBytes: 16 << 20, DuplicateWindow: 100 * time.Millisecond, Fresh: 250 * time.Millisecond}
}

// storing moves the checkpoints of all lanes to their ends until the test ends, as an ingester
// does.
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

// stored moves the checkpoint of a lane to its end, if possible.
func (w *world) stored(ctx context.Context, lane stream.Lane) {
	positions := stream.NewLaneStates(w.Stream)
	if pos, err := positions.Read(ctx, lane.Number); err == nil && pos.Done < lane.Last {
		pos.Owner, pos.StreamID, pos.Done = "test", lane.StreamID(), lane.Last
		_, _ = positions.CompareAndSwap(ctx, lane.Number, pos) // the next call retries
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

// TestASpreadThatIsNeverStoredGivesUp: ClickHouse is down.
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

// TestASpreadIsKilledAtEveryStep and started again.
func TestASpreadIsKilledAtEveryStep(t *testing.T) {
	for step := 1; step <= 3; step++ {
		t.Run(fmt.Sprintf("after step %d", step), func(t *testing.T) {
			t.Parallel()
			w := open(t, spreadable())
			w.met()
			w.storing()
			n := 0
			killed := make(chan struct{})
			go func() { // as a process that ends there
				defer close(killed)
				err := w.Spread(t.Context(), stream.Spreading{Source: "cluster-a", Lanes: []int{0, 1}, Say: func(string, ...any) {
					if n++; n == step {
						runtime.Goexit()
					}
				}})
				t.Errorf("it continued: %v", err)
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
	for range 2 { // with a move, and while the write of one is in flight
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

// TestAMoveThatWasSetBackHasNoMarker: NATS is set back while a move waits until no api sends by the
// old list. They send by it again, so behind a marker their acknowledged requests would be void.
func TestAMoveThatWasSetBackHasNoMarker(t *testing.T) {
	t.Parallel()
	w := open(t, spreadable())
	w.met()
	w.storing()
	kv, err := w.jetStream().KeyValue(stream.SourceBucket)
	fatal.If(t, err)
	before, err := kv.Get("s" + base64.RawURLEncoding.EncodeToString([]byte("cluster-a")))
	fatal.If(t, err)
	setBack := sync.OnceValue(func() error { _, err := kv.Put(before.Key(), before.Value()); return err })
	err = w.Spread(t.Context(), stream.Spreading{Source: "cluster-a", Lanes: []int{0, 1}, Say: func(string, ...any) { fatal.If(t, setBack()) }})
	if err == nil || !strings.Contains(err.Error(), "NATS was set back") {
		t.Errorf("got %v, want that NATS was set back", err)
	}
	markers, err := w.MoveMarkers(t.Context())
	if err != nil || len(markers) > 0 {
		t.Errorf("got %d move markers (%v), want none", len(markers), err)
	}
	expect.Equal(t, "sources", map[string][]int{"cluster-a": {0}}, w.sources())
}

// TestOneThatSleptThroughASpread: it was frozen before the source was marked, and its list is
// outdated.
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
		if asked++; asked == 2 { // the marker is published: any later message would be behind it
			if err := sendOne(p, "cluster-a", "asleep", 1); !errors.Is(err, flow.ErrHeld) {
				t.Errorf("during the move: got %v, want %v", err, flow.ErrHeld)
			}
		}
	}
	fatal.If(t, w.Spread(t.Context(), stream.Spreading{Source: "cluster-a", Lanes: []int{0, 1}, Say: ask}))
	time.Sleep(300 * time.Millisecond) // until its list is outdated
	fatal.If(t, sendOne(p, "cluster-a", "awake", 1))
	if got := ids(w.all(1)); !slices.Equal(got, []string{"awake"}) || asked < 2 {
		t.Errorf("lane 1 holds %v, want what was sent after the move", got)
	}
}

func TestAnInvalidSpread(t *testing.T) {
	w := open(t, spreadable())
	w.met()
	for name, c := range map[string]struct {
		to   stream.Spreading
		want string
	}{
		"a source that was never seen": {stream.Spreading{Source: "x", Lanes: []int{0}}, "does not exist yet"},
		"a lane that does not exist":   {stream.Spreading{Source: "cluster-a", Lanes: []int{0, 7}}, "lane 7 does not exist"},
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

// TestTwoMoveASourceAtOnce: only one of them succeeds.
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
		t.Errorf("it has lanes %v, and was given %d", got, done.Load())
	}
	expect.NoError(t, sendOne(w.publisher(), "cluster-a", "afterwards", 1))
}
