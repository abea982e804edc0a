package stream_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// TestAnOrderReachesEveryOwner: an owner that read the lane state before the order can no longer
// write it. Messages behind the returned ends are read with the order.
func TestAnOrderReachesEveryOwner(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	w.addLane()
	states := stream.NewLaneStates(w.Stream)
	before, err := states.CompareAndSwap(t.Context(), 0, flow.LaneState{Owner: "a"})
	fatal.If(t, err)
	if orders, err := w.Forgets(t.Context()); err != nil || len(orders) > 0 {
		t.Fatalf("orders %v, %v", orders, err)
	}
	order := flow.Forget{ID: "r1", Before: 5, Subjects: []flow.ForgetSubject{{Source: "a", Keys: []string{"7"}}}}
	for range 2 { // as after a crash
		ends, err := w.Forget(t.Context(), order)
		if diff := cmp.Diff(map[int]uint64{0: 0, 1: 0}, ends); err != nil || diff != "" {
			t.Fatalf("%v, ends (-want +got):\n%s", err, diff)
		}
	}
	orders, err := w.Forgets(t.Context())
	if diff := cmp.Diff([]flow.Forget{order}, orders); err != nil || diff != "" {
		t.Errorf("%v, orders (-want +got):\n%s", err, diff)
	}
	if _, err := states.CompareAndSwap(t.Context(), 0, before); !errors.Is(err, flow.ErrNotOwner) {
		t.Errorf("an owner that has not read the order writes the lane state: %v", err)
	}
	for lane, owner := range map[int]string{0: "a", 1: ""} {
		if now, err := states.Read(t.Context(), lane); err != nil || now.Forget != "r1" || now.Owner != owner {
			t.Errorf("lane %d: %+v, %v", lane, now, err)
		}
	}
}

// TestAnOrderEndsAndIsWrittenAgain, as from a receipt after an older backup was restored.
func TestAnOrderEndsAndIsWrittenAgain(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	order := flow.Forget{ID: "r1", Before: 5, Subjects: []flow.ForgetSubject{{Source: "a", Keys: []string{"7"}}}}
	for range 2 {
		for range 2 {
			fatal.If(t, w.RestoreForget(t.Context(), order))
		}
		orders, err := w.Forgets(t.Context())
		if diff := cmp.Diff([]flow.Forget{order}, orders); err != nil || diff != "" {
			t.Errorf("%v, orders (-want +got):\n%s", err, diff)
		}
		for range 2 {
			fatal.If(t, w.EndForget(t.Context(), order.ID))
		}
		if orders, err := w.Forgets(t.Context()); err != nil || len(orders) > 0 {
			t.Errorf("ended: orders %v, %v", orders, err)
		}
	}
}
