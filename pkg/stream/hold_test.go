package stream_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

func TestALaneIsHeldByOne(t *testing.T) {
	w := open(t, stream.Config{})
	positions := stream.NewLaneStates(w.Stream)
	ctx := t.Context()
	soon := time.Now().Add(time.Minute)
	first, err := positions.Hold(ctx, 0, "one", soon)
	fatal.When(t, err != nil || !first.Held(time.Now()) || first.Held(soon), "hold: %+v, %v", first, err)
	if _, err := positions.Hold(ctx, 0, "two", soon); err == nil || !strings.Contains(err.Error(), "lane 0 is held by one") {
		t.Errorf("a second hold: %v", err)
	}
	if _, err := positions.Hold(ctx, 0, "one", soon.Add(time.Second)); err != nil {
		t.Errorf("the same again: %v", err)
	}
	expect.NoError(t, positions.Release(ctx, 0, "two"))
	if pos, err := positions.Read(ctx, 0); err != nil || !pos.Held(time.Now()) {
		t.Errorf("another name has released it: %+v, %v", pos, err)
	}
	expect.NoError(t, positions.Release(ctx, 0, "one"))
	if _, err := positions.Hold(ctx, 0, "two", time.Now()); err != nil { // which expires at once
		t.Error(err)
	}
	if _, err := positions.Hold(ctx, 0, "three", soon); err != nil {
		t.Errorf("after a hold whose time is up: %v", err)
	}
}

// TestAHoldStopsTheOwnerOfTheLane: the owner fails at its next move, and reads the hold.
func TestAHoldStopsTheOwnerOfTheLane(t *testing.T) {
	w := open(t, stream.Config{})
	w.publish(w.publisher(), "id", 20)
	positions := stream.NewLaneStates(w.Stream)
	ctx := t.Context()
	stop, moves := make(chan struct{}), 0
	var owner sync.WaitGroup
	owner.Go(func() { // as fast as it can
		var pos flow.LaneState
		for {
			select {
			case <-stop:
				return
			default:
			}
			next, err := positions.CompareAndSwap(ctx, 0, pos)
			if err != nil {
				if next, err = positions.Read(ctx, 0); err != nil {
					t.Error(err)
					return
				}
			}
			if pos = next; pos.Held(time.Now()) {
				return
			}
			moves++
		}
	})
	time.Sleep(50 * time.Millisecond)
	if _, err := positions.Hold(ctx, 0, "one", time.Now().Add(time.Minute)); err != nil {
		t.Error(err)
	}
	time.AfterFunc(5*time.Second, func() { close(stop) })
	owner.Wait()
	select {
	case <-stop:
		t.Error("the owner continues")
	default:
	}
	t.Logf("%d moves before it was held", moves)
}
