package stream_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// TestWhatWasRoutedTooLongAgoIsNotSent: a process can be frozen between routing
// a submission and sending it, and its lane be another one meanwhile.
func TestWhatWasRoutedTooLongAgoIsNotSent(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	one, two := submission("one", 10), submission("two", 10)
	for _, err := range p.SendUntil(time.Now().Add(-time.Millisecond), one, two) {
		if !errors.Is(err, stream.ErrAnew) {
			t.Errorf("got %v, want %v", err, stream.ErrAnew)
		}
	}
	if n := len(w.all(0)); n != 0 {
		t.Errorf("%d requests were stored, want none", n)
	}
	for _, err := range p.SendUntil(time.Now().Add(time.Minute), one, two) {
		if err != nil {
			t.Errorf("in time: %v", err)
		}
	}
	if n := len(w.entries(0)); n != 1 || len(w.all(0)) != 2 {
		t.Errorf("%d entries of %d requests were stored in time, want 1 of 2", n, len(w.all(0)))
	}
}

// TestAnApiThatWasTooSlowDoesNotAnswerOK: what it has sent landed behind more than
// half a window, where it counts for nothing. Sent again it counts.
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
	if !errors.Is(err, flow.ErrUnavailable) || !errors.As(err, &retry) {
		t.Fatalf("got %v, want %v and when to come back", err, flow.ErrUnavailable)
	}
	if got, err := frozen.Publish(t.Context(), submission("late", 10)); err != nil || got.Replayed {
		t.Errorf("again: got %+v, %v", got, err)
	}
	var knew []uint64
	for _, e := range w.entries(0) {
		if e.Messages[0].ID == "late" {
			knew = append(knew, e.Knew)
			if e.Patience != window/2 {
				t.Errorf("the entry has a patience of %v, want %v", e.Patience, window/2)
			}
		}
	}
	if !slices.Equal(knew, []uint64{1, 4}) {
		t.Errorf("its api knew the messages up to %v, want 1 and then 4", knew)
	}
}
