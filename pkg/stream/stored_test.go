package stream_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// TestAWaitEndsWhenItsMessagesAreStored: not before the checkpoint of this stream has
// passed them, and then soon, whatever comes behind.
func TestAWaitEndsWhenItsMessagesAreStored(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	if err := w.WaitStored(t.Context(), nil); err != nil {
		t.Fatalf("of nothing: %v", err)
	}
	p := w.publisher()
	w.publish(p, "id", 2)
	publish := func(id string) []flow.Place {
		t.Helper()
		receipt, err := p.Publish(t.Context(), submission(id, 10))
		if err != nil {
			t.Fatal(err)
		}
		return receipt.Places
	}
	places := publish("third")
	ends, err := w.Ends(t.Context(), "cluster-a")
	if diff := cmp.Diff([]flow.Place{{Stream: places[0].Stream, Seq: places[0].Seq}}, ends); diff != "" || err != nil {
		t.Errorf("ends of the source: %v (-want +got):\n%s", err, diff)
	}
	later := publish("fourth")
	soon := func(places []flow.Place) error {
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		return w.WaitStored(ctx, places)
	}
	positions := stream.NewLaneStates(w.Stream)
	at, err := positions.Read(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	move := func(identity string, done uint64) {
		t.Helper()
		at.StreamID, at.Done = identity, done
		if at, err = positions.CompareAndSwap(t.Context(), 0, at); err != nil {
			t.Fatal(err)
		}
	}
	identity, err := positions.StreamID(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, behind := range []func(){func() {}, func() { move(identity, 2) }, func() { move("FLOW_0@1", 3) }} {
		behind()
		if err := soon(places); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("at %+v: %v", at, err)
		}
	}
	var all sync.WaitGroup
	answers := make(chan error, 100)
	for range cap(answers) { // they look together
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			answers <- w.WaitStored(ctx, places)
		})
	}
	time.Sleep(50 * time.Millisecond)
	if n := len(answers); n != 0 {
		t.Errorf("%d have an answer before it is stored", n)
	}
	move(identity, 3)
	moved := time.Now()
	all.Wait()
	if took := time.Since(moved); took > 5*time.Second {
		t.Errorf("they heard of it after %v", took)
	}
	for range cap(answers) {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if err := soon(append(places, later...)); !errors.Is(err, context.DeadlineExceeded) { // what others sent is not waited for
		t.Errorf("of the one behind it: %v", err)
	}
}
