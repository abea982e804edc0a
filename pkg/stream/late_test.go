package stream_test

import (
	"errors"
	"testing"
	"time"

	"sluice/pkg/record"
	"sluice/pkg/stream"
)

// TestWhatWasRoutedTooLongAgoIsNotSent: a process can be frozen between routing
// a submission and sending it, and its lane be another one meanwhile.
func TestWhatWasRoutedTooLongAgoIsNotSent(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	one, two := submission("one", 10), submission("two", 10)
	past := time.Now().Add(-time.Millisecond)
	for _, tt := range []struct {
		way  string
		subs []*record.Submission
	}{
		{"at once", []*record.Submission{one}},
		{"at once", []*record.Submission{one, two}},
		{"begun", []*record.Submission{one}},
		{"begun in time", []*record.Submission{one}},
		{"begun in time", []*record.Submission{one, two}},
	} {
		if err := p.CommitAfter(t.Context(), tt.way, past, tt.subs...); !errors.Is(err, stream.ErrStale) {
			t.Errorf("%s, %d messages: got %v, want %v", tt.way, len(tt.subs), err, stream.ErrStale)
		}
	}
	if n := len(w.all(0)); n != 0 {
		t.Errorf("%d messages were stored, want none", n)
	}
	if err := p.CommitAfter(t.Context(), "begun in time", time.Now().Add(time.Minute), one, two); err != nil {
		t.Errorf("in time: %v", err)
	}
	if n := len(w.all(0)); n != 2 {
		t.Errorf("%d messages were stored in time, want 2", n)
	}
	if verdict, answer := stream.Judge(stream.ErrStale); verdict != "unreached" || !errors.Is(answer, record.ErrUnavailable) {
		t.Errorf("it is judged %s, %v", verdict, answer)
	}
}
