package run_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"sluice/cmd/internal/run"
)

func TestInOrderStopsTheFirstPartFirst(t *testing.T) {
	var mu sync.Mutex
	var ended []string
	running := make(chan struct{}, 3)
	part := func(name string) run.Part {
		return func(ctx context.Context) error {
			running <- struct{}{}
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			ended = append(ended, name)
			return nil
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		for range 3 {
			<-running
		}
		stop()
	}()
	if err := run.InOrder(ctx, part("api"), part("ingester"), part("engine")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"api", "ingester", "engine"}; !slices.Equal(ended, want) {
		t.Errorf("ended %v, want %v", ended, want)
	}
}

func TestInOrderEndsEveryPartWhenOneFails(t *testing.T) {
	broken := errors.New("broken")
	waits := func(ctx context.Context) error { <-ctx.Done(); return nil }
	fails := func(context.Context) error { return broken }
	for name, parts := range map[string][]run.Part{
		"the first": {fails, waits, waits}, "one between": {waits, fails, waits}, "the last": {waits, waits, fails},
	} {
		if err := run.InOrder(t.Context(), parts...); !errors.Is(err, broken) {
			t.Errorf("%s fails: got %v, want %v", name, err, broken)
		}
	}
}
