package run_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"sluice/cmd/internal/run"
	"sluice/pkg/fatal"
)

func TestTheFirstServiceStopsFirst(t *testing.T) {
	var mu sync.Mutex
	var ended []string
	running := make(chan struct{}, 3)
	service := func(name string) run.Service {
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
	fatal.If(t, run.RunInOrder(ctx, service("api"), service("ingester"), service("engine")))
	if want := []string{"api", "ingester", "engine"}; !slices.Equal(ended, want) {
		t.Errorf("ended %v, want %v", ended, want)
	}
}

func TestEveryServiceEndsWhenOneFails(t *testing.T) {
	broken := errors.New("broken")
	waits := func(ctx context.Context) error { <-ctx.Done(); return nil }
	fails := func(context.Context) error { return broken }
	for name, services := range map[string][]run.Service{
		"the first": {fails, waits, waits}, "one between": {waits, fails, waits}, "the last": {waits, waits, fails},
	} {
		if err := run.RunInOrder(t.Context(), services...); !errors.Is(err, broken) {
			t.Errorf("%s fails: got %v, want %v", name, err, broken)
		}
	}
}

func TestUntilStoppedForgetsOnlyWhatStoppingGaveUp(t *testing.T) {
	running, stop := context.WithCancel(t.Context())
	waited := fmt.Errorf("open the streams: %w", context.Canceled)
	broken := errors.New("the disk is gone")
	if err := run.UntilStopped(running, waited); err != waited {
		t.Errorf("while it runs: %v, want %v", err, waited)
	}
	stop()
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"nothing", nil, ""},
		{"it was waiting", waited, ""},
		{"two were waiting", errors.Join(waited, context.Canceled), ""},
		{"one was waiting, one is broken", errors.Join(waited, errors.Join(broken, waited)), "the disk is gone"},
		{"it is broken", broken, "the disk is gone"},
	} {
		got := ""
		if err := run.UntilStopped(running, c.err); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
