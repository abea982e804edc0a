package stream_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"sluice/pkg/stream"
)

// TestWhoWaitsHearsWhenAllIsStored: not before the position has passed what was
// published, by the lane's own numbering, and then soon.
func TestWhoWaitsHearsWhenAllIsStored(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	if err := w.Stored(t.Context(), "nobody"); err != nil {
		t.Fatalf("of a source that has published nothing: %v", err)
	}
	p := w.publisher()
	w.publish(p, "id", 3)
	source := w.Sources()[0].Name
	soon := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		return w.Stored(ctx, source)
	}
	positions := stream.NewPositions(w.Stream)
	at, err := positions.Read(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	move := func(identity string, done uint64) {
		t.Helper()
		at.Stream, at.Done = identity, done
		if at, err = positions.Swap(t.Context(), 0, at); err != nil {
			t.Fatal(err)
		}
	}
	identity, err := positions.Identity(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, behind := range []func(){func() {}, func() { move(identity, 2) }, func() { move("FLOW_0@1", 3) }} {
		behind()
		if err := soon(); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("at %+v: %v", at, err)
		}
	}
	var all sync.WaitGroup
	answers := make(chan error, 100)
	for range cap(answers) { // they look together
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			answers <- w.Stored(ctx, source)
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
	w.publish(p, "more", 1)
	if err := soon(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after one more: %v", fmt.Sprint(err))
	}
}
