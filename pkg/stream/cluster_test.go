package stream_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// TestALeaderMayHaveToCatchUp: a new leader may answer before it has written all that the group committed. Such a lane
// was not set back.
func TestALeaderMayHaveToCatchUp(t *testing.T) {
	t.Parallel()
	cluster := natstest.StartCluster(t, 3)
	w := openAt(t, cluster.URL, stream.Config{Replicas: 3})
	p := w.publisher()
	w.publish(p, "id", 10)
	w.swapTo(0, 15)
	open := func() error {
		_, err := w.OpenLane(t.Context(), 0, 16, 0)
		return err
	}
	read := func() error {
		_, err := w.position(0)
		return err
	}
	for name, ask := range map[string]func() error{"its position": read, "the reader": open} {
		w.SetSettle(time.Hour)
		if err := ask(); !errors.Is(err, flow.ErrUnavailable) || errors.Is(err, flow.ErrGap) {
			t.Errorf("%s, at first: got %v, want %v", name, err, flow.ErrUnavailable)
		}
		w.SetSettle(0)
		if err := ask(); !errors.Is(err, flow.ErrGap) {
			t.Errorf("%s, when it stays so: got %v, want %v", name, err, flow.ErrGap)
		}
	}
	w.SetSettle(time.Hour)
	w.publish(p, "more", 5)
	if err := read(); err != nil {
		t.Errorf("when it has caught up: %v", err)
	}
}

func TestAClusterDetectsRepeatsAndMisusedKeys(t *testing.T) {
	t.Parallel()
	cluster := natstest.StartCluster(t, 3)
	w := openAt(t, cluster.URL, stream.Config{Replicas: 3})
	p := w.publisher()
	for i, sizes := range [][]int{{100}, {100 << 10}, {100, 200, 300}} {
		id := fmt.Sprintf("id-%d", i)
		for n, want := range []bool{false, true} {
			got, err := p.Publish(t.Context(), submission(id, sizes...))
			expect.Not(t, err != nil || got.Replayed != want, "publish %s, %d: got %+v, %v, want replayed %v", id, n, got, err, want)
		}
		other := submission(id, sizes...)
		other.Hash = "another"
		if _, err := p.Publish(t.Context(), other); !errors.Is(err, flow.ErrKeyReused) {
			t.Errorf("publish another %s: got %v, want %v", id, err, flow.ErrKeyReused)
		}
	}
	// The lookup of an id leaves nothing in the lane.
	expect.Equal(t, "the lane holds messages", 5, len(w.all(0)))
}
