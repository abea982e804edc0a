package stream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// TestWhatWasRoutedTooLongAgoIsConfirmed: a process can be frozen between routing and sending a
// submission. It is sent if the lane list of its source is unchanged, and not if the source was or
// is being moved.
func TestWhatWasRoutedTooLongAgoIsConfirmed(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 16 << 20, Fresh: 50 * time.Millisecond, Poll: 10 * time.Millisecond})
	p := w.publisher()
	one, two := submission("one", 10), submission("two", 10)
	send := p.Route(t.Context(), one, two)
	time.Sleep(100 * time.Millisecond)
	if err := send(); err != nil {
		t.Errorf("of a source that has the same lanes: %v", err)
	}
	if n := len(w.entries(0)); n != 1 || len(w.all(0)) != 2 {
		t.Errorf("%d entries of %d requests were stored, want 1 of 2", n, len(w.all(0)))
	}
	w.addLane()
	for i, next := range []stream.Source{
		{Name: "cluster-a", Lanes: []int{0}, Revision: 2, Move: []int{0, 1}},
		{Name: "cluster-a", Lanes: []int{0, 1}, Revision: 3},
		{Name: "cluster-a", Lanes: []int{0, 1}, Revision: 5},
	} {
		w.sources()
		send := func() error { return nil }
		if i != 1 { // nothing can be routed during a move
			send = p.Route(t.Context(), submission(fmt.Sprint("three-", i), 10))
		}
		w.setSource(next)
		w.sources()
		time.Sleep(100 * time.Millisecond)
		if err := send(); i != 1 && !errors.Is(err, flow.ErrHeld) {
			t.Errorf("with the list %+v: got %v, want %v", next, err, flow.ErrHeld)
		}
	}
	expect.Equal(t, "requests are stored", 2, len(w.all(0)))
}

// TestAnApiThatWasTooSlowDoesNotAnswerOK: its message landed more than half a window late, and is
// void. A resend counts.
func TestAnApiThatWasTooSlowDoesNotAnswerOK(t *testing.T) {
	t.Parallel()
	const window = 800 * time.Millisecond
	w := open(t, stream.Config{})
	frozen := openOn(t, w.server, stream.Config{RepeatWindow: window, Poll: time.Hour, Fresh: time.Hour}).publisher()
	if _, err := frozen.Publish(t.Context(), submission("one", 10)); err != nil {
		t.Fatal(err)
	}
	p := w.publisher()
	w.publish(p, "other", 1)
	time.Sleep(window)
	w.publish(p, "another", 1)
	_, err := frozen.Publish(t.Context(), submission("late", 10))
	var retry *flow.RetryError
	fatal.When(t, !errors.Is(err, flow.ErrUnavailable) || !errors.As(err, &retry), "got %v, want %v with a retry delay", err, flow.ErrUnavailable)
	if got, err := frozen.Publish(t.Context(), submission("late", 10)); err != nil || got.Replayed {
		t.Errorf("again: got %+v, %v", got, err)
	}
	var ends []uint64
	for _, e := range w.entries(0) {
		if e.Messages[0].ID == "late" {
			ends = append(ends, e.LogEnd)
			expect.Not(t, e.Patience != window/2, "the entry has a patience of %v, want %v", e.Patience, window/2)
		}
	}
	expect.Not(t, !slices.Equal(ends, []uint64{1, 4}), "its headers name the log ends %v, want 1 and then 4", ends)
}

// TestWhatWaitedWhileTheLaneMovedOnIsVoid: a paused api has several entries queued. Each is void,
// although the first acknowledgement shows the lane's end.
func TestWhatWaitedWhileTheLaneMovedOnIsVoid(t *testing.T) {
	t.Parallel()
	const window = 800 * time.Millisecond
	w := open(t, stream.Config{})
	frozen := openOn(t, w.server, stream.Config{RepeatWindow: window, Poll: time.Hour, Fresh: time.Hour}).publisher()
	if _, err := frozen.Publish(t.Context(), submission("one", 10)); err != nil {
		t.Fatal(err)
	}
	queued, release := frozen.Hold()
	answers := make(chan error, 3)
	for i := range cap(answers) { // each is an entry
		go func() {
			_, err := frozen.Publish(t.Context(), submission(fmt.Sprint("late-", i), 600<<10))
			answers <- err
		}()
	}
	for queued() < cap(answers) {
		time.Sleep(time.Millisecond)
	}
	p := w.publisher()
	w.publish(p, "other", 1)
	time.Sleep(window)
	w.publish(p, "another", 1)
	release()
	for range cap(answers) {
		if err := <-answers; !errors.Is(err, flow.ErrUnavailable) {
			t.Errorf("got %v, want %v", err, flow.ErrUnavailable)
		}
	}
	for i := range cap(answers) {
		if got, err := frozen.Publish(t.Context(), submission(fmt.Sprint("late-", i), 600<<10)); err != nil || got.Replayed {
			t.Errorf("late-%d, again: got %+v, %v", i, got, err)
		}
	}
}

// TestACallWhoseTimeIsUpSendsNothing, so that its client may use another api.
func TestACallWhoseTimeIsUpSendsNothing(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	w.publish(p, "known", 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Publish(ctx, submission("gone", 10)); !errors.Is(err, flow.ErrBusy) {
		t.Errorf("got %v, want %v", err, flow.ErrBusy)
	}
	expect.Equal(t, "requests are stored", 1, len(w.all(0)))
	if err := p.Check(); err != nil {
		t.Errorf("Check: got %v of the stream because a client has gone", err)
	}
}
