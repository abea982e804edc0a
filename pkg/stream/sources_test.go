package stream_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// of is a submission of a source with one chunk for each of these lanes of its list.
func of(source, id string, lanes ...int) *flow.Submission {
	sub := submission(id, make([]int, len(lanes))...)
	sub.Source = source
	for i := range chunksOf(sub) {
		chunksOf(sub)[i].Lane = lanes[i]
		chunksOf(sub)[i].Body = fmt.Appendf(nil, "%s/%d", id, i)
	}
	return sub
}

// modulo is a record of a partition: it goes to list[partition mod length].
type modulo struct {
	body      string
	partition int
}

func (m modulo) Cut(lanes int) ([]flow.Chunk, error) {
	return []flow.Chunk{{Body: []byte(m.body), Records: 1, Lane: m.partition % lanes}}, nil
}

// setSource writes the lanes of a source directly to the bucket.
func (w *world) setSource(s stream.Source) {
	w.t.Helper()
	value, err := json.Marshal(s)
	fatal.If(w.t, err)
	w.setSourceTo(s.Name, value)
}

func (w *world) setSourceTo(name string, value []byte) {
	w.t.Helper()
	kv, err := w.jetStream().KeyValue(stream.SourceBucket)
	fatal.If(w.t, err)
	if _, err := kv.Put("s"+base64.RawURLEncoding.EncodeToString([]byte(name)), value); err != nil {
		w.t.Fatal(err)
	}
}

// sources looks up the lanes of every source.
func (w *world) sources() map[string][]int {
	w.t.Helper()
	fatal.If(w.t, w.Refresh(w.t.Context()))
	all := map[string][]int{}
	for _, s := range w.Sources() {
		all[s.Name] = s.Lanes
	}
	return all
}

func TestASourceKeepsItsLanesWhenOneIsAdded(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 16 << 20})
	other := openOn(t, w.server, stream.Config{})
	p, q := w.publisher(), other.publisher()
	post := func(p *stream.Publisher, source, id string, lanes ...int) {
		t.Helper()
		if _, err := p.Publish(t.Context(), of(source, id, lanes...)); err != nil {
			t.Fatal(err)
		}
	}
	post(p, "early", "e1", 0)
	w.addLane()
	post(q, "early", "e2", 0)
	post(q, "late", "l1", 0, 1)
	post(p, "late", "l2", 1)
	w.addLane()
	post(p, "late", "l3", 0)
	post(p, "", "n1", 2) // without a source: as any other

	want := [][]string{{"e1", "e2", "l1", "l3"}, {"l1", "l2"}, {"n1"}}
	expect.Equal(t, "messages of the lanes", want, [][]string{ids(w.all(0)), ids(w.all(1)), ids(w.all(2))})
	lists := map[string][]int{"early": {0}, "late": {0, 1}, "": {0, 1, 2}}
	expect.Equal(t, "sources", lists, other.sources())
	again := openOn(t, w.server, stream.Config{}) // a new process has them all
	expect.Equal(t, "sources after a start", lists, again.sources())
}

// TestTwoMeetASourceAtOnce while a lane is added. The first one decides for both.
func TestTwoMeetASourceAtOnce(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 16 << 20})
	behind := openOn(t, w.server, stream.Config{Poll: time.Hour})
	publishers := []*stream.Publisher{w.publisher(), behind.publisher()}
	const sources, repeats = 30, 4
	var all sync.WaitGroup
	for i := range sources {
		if i == sources/3 {
			all.Go(func() { w.addLane() })
		}
		for r := range repeats {
			all.Go(func() {
				p, source := publishers[r%2], fmt.Sprintf("source-%d", i)
				err := sendOne(p, source, source, 1)
				for try := 0; err != nil && try < 5; try++ { // others look the sources up concurrently
					err = sendOne(p, source, source, 1)
				}
				expect.NoError(t, err)
			})
		}
	}
	all.Wait()
	lists, stored := w.sources(), map[string]int{}
	for lane := range 2 {
		for _, m := range w.once(lane) {
			if stored[m.Source]++; stored[m.Source] > 1 {
				t.Errorf("the record of %s is stored %d times", m.Source, stored[m.Source])
			}
			if !slices.Contains(lists[m.Source], lane) {
				t.Errorf("%s has lanes %v, its record is in lane %d", m.Source, lists[m.Source], lane)
			}
		}
	}
	expect.Not(t, len(stored) != sources || len(lists) != sources, "records of %d sources are stored, %d have lanes, want %d", len(stored), len(lists), sources)
}

// TestWhatGoesToTwoLanes: one of two lanes is full for a while.
func TestWhatGoesToTwoLanes(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 1 << 20})
	p := w.publisher()
	w.publish(p, "one-lane", 1)
	w.addLane()
	for i := 0; ; i++ {
		if _, err := p.Publish(t.Context(), submission(fmt.Sprintf("fill-%d", i), 16<<10)); errors.Is(err, flow.ErrFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	sub := of("both", "b", 0, 0, 1, 1)
	chunksOf(sub)[0].Body = make([]byte, 64<<10)
	var retry *flow.RetryError
	if _, err := p.Publish(t.Context(), sub); !errors.Is(err, flow.ErrFull) || !errors.As(err, &retry) {
		t.Fatalf("one lane is full: got %v, want %v with a retry delay", err, flow.ErrFull)
	}
	fatal.If(t, w.jetStream().PurgeStream("FLOW_0"))
	for n, want := range []bool{false, true} {
		got, err := p.Publish(t.Context(), sub)
		if err != nil || got.Replayed != want || len(got.Places) != 2 || got.Places[0].Lane != 0 || got.Places[1].Lane != 1 {
			t.Errorf("again, %d: got %+v, %v, want replayed %v", n, got, err, want)
		}
	}
	if got, err := p.Publish(t.Context(), of("both", "c", 0)); err != nil || got.Replayed {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := w.publisher().Publish(t.Context(), of("both", "c", 0, 1)); err != nil || got.Replayed {
		t.Errorf("of which one lane has its chunk: got %+v, %v, want that some of it is new", got, err)
	}
	other := of("both", "b", 1)
	other.Hash = "of another body"
	if _, err := p.Publish(t.Context(), other); !errors.Is(err, flow.ErrKeyReused) {
		t.Errorf("another body: got %v, want %v", err, flow.ErrKeyReused)
	}
	want := [][]string{{"b", "b.1", "c"}, {"b", "b.1", "c"}}
	expect.Equal(t, "chunks of the lanes", want, [][]string{ids(w.once(0)), ids(w.once(1))})
}

func TestASourceThatIsHeld(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 16 << 20})
	p := w.publisher()
	w.publish(p, "ok", 1)
	w.setSource(stream.Source{Name: "moving", Lanes: []int{0}, Move: []int{0, 1}})
	w.setSource(stream.Source{Name: "gone", Lanes: []int{7}})
	w.setSourceTo("damaged", []byte("{"))
	w.setSourceTo("empty", []byte(`{"source":"empty"}`))
	w.sources()
	for _, name := range []string{"moving", "gone", "damaged", "empty"} {
		var retry *flow.RetryError
		begun := time.Now()
		if _, err := p.Publish(t.Context(), of(name, name, 0)); !errors.Is(err, flow.ErrHeld) || !errors.As(err, &retry) {
			t.Errorf("%s: got %v, want %v with a retry delay", name, err, flow.ErrHeld)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("%s: it took %v", name, took)
		}
	}
	if err := p.Check(); err != nil {
		t.Errorf("not ready because of one source: %v", err)
	}
	if _, err := p.Publish(t.Context(), submission("others-go-on", 10)); err != nil {
		t.Error(err)
	}
}

func TestChunksOutOfOrderAreRefused(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 16 << 20})
	w.addLane()
	p := w.publisher()
	for _, sub := range []*flow.Submission{of("s", "a", 2), of("s", "b", -1), of("s", "c", 1, 0), of("s", "d", 0, 1, 0)} {
		if _, err := p.Publish(t.Context(), sub); err == nil {
			t.Errorf("%s was taken", sub.ID)
		}
	}
}

// TestSourcesOfAnEarlierTime: the bucket or an entry of it was deleted.
func TestSourcesOfAnEarlierTime(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 16 << 20})
	p := w.publisher()
	for _, name := range []string{"a", "b"} {
		if _, err := p.Publish(t.Context(), of(name, name, 0)); err != nil {
			t.Fatal(err)
		}
	}
	w.addLane()
	kv, err := w.jetStream().KeyValue(stream.SourceBucket)
	fatal.If(t, err)
	fatal.If(t, kv.Delete("s"+base64.RawURLEncoding.EncodeToString([]byte("a"))))
	expect.Equal(t, "sources", map[string][]int{"b": {0}}, w.sources())
	if _, err := p.Publish(t.Context(), of("a", "again", 1)); err != nil {
		t.Errorf("a source whose entry was deleted is not met again: %v", err)
	}
	cfg, err := w.jetStream().StreamInfo("KV_" + stream.SourceBucket)
	fatal.If(t, err)
	fatal.If(t, w.jetStream().DeleteStream(cfg.Config.Name))
	if _, err := w.jetStream().AddStream(&cfg.Config); err != nil {
		t.Fatal(err)
	}
	expect.Equal(t, "sources of a recreated bucket", map[string][]int{}, w.sources())
}

func TestAFirstSightWhileNATSIsAway(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	p := w.publisher()
	w.publish(p, "before", 1)
	w.server.Stop()
	begun := time.Now()
	if _, err := p.Publish(t.Context(), of("new", "new", 0)); !errors.Is(err, flow.ErrUnavailable) {
		t.Errorf("got %v, want %v", err, flow.ErrUnavailable)
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("it took %v, want at most 2s", took)
	}
}

// TestSourcesOfACluster: two processes, each with its own list of lanes, on three servers, one of
// which is down.
func TestSourcesOfACluster(t *testing.T) {
	t.Parallel()
	cluster := natstest.StartCluster(t, 3)
	w := openAt(t, cluster.URL, stream.Config{Replicas: 3, MaxBytes: 16 << 20})
	other := openAt(t, cluster.URL, stream.Config{Replicas: 3})
	w.addLane()
	publishers := []*stream.Publisher{w.publisher(), other.publisher()}
	for i := range 20 {
		if i == 10 {
			cluster.Stop(cluster.Leader("KV_" + stream.SourceBucket))
		}
		source := fmt.Sprintf("source-%d", i)
		var all sync.WaitGroup
		for _, p := range publishers {
			all.Go(func() {
				for begun := time.Now(); ; {
					err := sendOne(p, source, source, 1)
					if err == nil {
						return
					}
					if !errors.Is(err, flow.ErrUnavailable) || time.Since(begun) > 30*time.Second {
						t.Errorf("%s: %v", source, err)
						return
					}
				}
			})
		}
		all.Wait()
	}
	seen := map[string]int{}
	for _, m := range append(w.once(0), w.once(1)...) {
		seen[m.Source]++
	}
	want := map[string]int{}
	for i := range 20 {
		want[fmt.Sprintf("source-%d", i)] = 1
	}
	expect.Equal(t, "records of every source", want, seen, cmpopts.EquateEmpty())
}
