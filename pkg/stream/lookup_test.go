package stream_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// TestNoLaneIsPassedOverWhileItsLeaderIsAway: a new source gets all lanes permanently, and a lane
// that was missed would get no records. A cluster omits a stream from its list while the stream's
// leader does not answer.
func TestNoLaneIsPassedOverWhileItsLeaderIsAway(t *testing.T) {
	t.Parallel()
	url, servers := natstest.StartProcesses(t, 3)
	w := openAt(t, url, stream.Config{Replicas: 3, MaxBytes: 16 << 20, Poll: time.Hour})
	js, err := jetstream.New(w.nc)
	fatal.If(t, err)
	// While the meta leader is down nothing is listed; then another is elected.
	for try, listed := 0, false; !listed; try++ {
		fatal.When(t, try == 6, "the server that went away led the cluster, which shows nothing")
		away := eachLeads(t, w, js)[try%2]
		sources := leader(t, js, "KV_"+stream.SourceBucket) == fmt.Sprintf("n%d", away) // then they are unavailable until another leads
		want := w.LaneNumbers()
		servers[away].Pause()
		began := time.Now()
		listed = lists(w, js)
		for time.Since(began) < 6*time.Second {
			err := w.Refresh(t.Context())
			if got := w.LaneNumbers(); !slices.Equal(got, want) {
				t.Fatalf("%v after n%d went away: lanes %v, want %v", time.Since(began), away, got, want)
			}
			if listed && err != nil && !(sources && strings.Contains(err.Error(), "look up sources")) {
				t.Errorf("%v after n%d went away: %v, but the names are known", time.Since(began), away, err)
			}
			if got, err := found(t, w); err == nil && !slices.Equal(got, want) {
				t.Fatalf("%v after n%d went away: one that starts finds lanes %v, want %v", time.Since(began), away, got, want)
			}
		}
		servers[away].Resume()
	}
}

// lists reports whether streams can be listed now.
func lists(w *world, js jetstream.JetStream) bool {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
	defer cancel()
	names := js.StreamNames(ctx)
	for range names.Name() { // to the end, where a failure is reported
	}
	return names.Err() == nil
}

// TestOneThatSleptLooksTheSourcesUpFirst: a process that was stopped for a while resumes with
// outdated sources. A publisher without a running Run is equivalent.
func TestOneThatSleptLooksTheSourcesUpFirst(t *testing.T) {
	t.Parallel()
	server := natstest.StartProcess(t)
	cfg := stream.Config{Poll: 20 * time.Millisecond, Fresh: 100 * time.Millisecond, MaxBytes: 16 << 20}
	w := openAt(t, server.URL, cfg)
	slept, err := stream.Open(t.Context(), w.nc, cfg, quiet(), prometheus.NewRegistry())
	fatal.If(t, err)
	p := stream.NewPublisher(slept)
	if _, err := p.Publish(t.Context(), submission("before", 10)); err != nil {
		t.Fatal(err)
	}
	w.addLane()
	w.setSource(stream.Source{Name: "cluster-a", Lanes: []int{1}})
	time.Sleep(200 * time.Millisecond) // until its sources are outdated
	if _, err := p.Publish(t.Context(), submission("after", 10)); err != nil {
		t.Fatal(err)
	}
	expect.Equal(t, "lanes 0 and 1", [][]string{{"before"}, {"after"}}, [][]string{ids(w.all(0)), ids(w.all(1))})

	server.Pause()
	defer server.Resume()
	time.Sleep(200 * time.Millisecond) // until its sources are outdated again
	begun := time.Now()
	if _, err := p.Publish(t.Context(), submission("late", 10)); !errors.Is(err, flow.ErrUnavailable) {
		t.Errorf("while the sources cannot be looked up: got %v, want %v", err, flow.ErrUnavailable)
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("it took %v, want at most 2s", took)
	}
}

// found are the lanes that a newly started program finds.
func found(t *testing.T, w *world) ([]int, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s, err := stream.Open(ctx, w.nc, stream.Config{}, quiet(), prometheus.NewRegistry())
	if err != nil {
		return nil, err
	}
	return s.LaneNumbers(), nil
}

// leader is the server that leads a stream.
func leader(t *testing.T, js jetstream.JetStream, name string) string {
	t.Helper()
	handle, err := js.Stream(t.Context(), name)
	fatal.If(t, err)
	return handle.CachedInfo().Cluster.Leader
}

// eachLeads adds lanes until each server but this connection's leads one, and returns these
// servers.
func eachLeads(t *testing.T, w *world, js jetstream.JetStream) []int {
	t.Helper()
	leaders := map[string]int{}
	for range 20 {
		lane, err := w.AddLane(t.Context())
		for begun := time.Now(); err != nil && time.Since(begun) < 20*time.Second; lane, err = w.AddLane(t.Context()) {
			time.Sleep(100 * time.Millisecond) // an election follows the return of a server
		}
		fatal.If(t, err)
		name := leader(t, js, stream.LaneName(lane))
		var i int
		if _, err := fmt.Sscanf(name, "n%d", &i); err == nil && name != w.nc.ConnectedServerName() {
			leaders[name] = i
		}
		if len(leaders) == 2 {
			return slices.Sorted(maps.Values(leaders))
		}
	}
	t.Fatal("one server leads no lane")
	return nil
}
