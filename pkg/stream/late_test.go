package stream_test

import (
	"errors"
	"testing"
	"time"

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
