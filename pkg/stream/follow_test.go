package stream_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"sluice/pkg/benchtest"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// followed waits until the api has read so many entries of others.
func (w *world) followed(n int) {
	w.t.Helper()
	metric := func() int {
		all, err := w.reg.Gather()
		if err != nil {
			w.t.Fatal(err)
		}
		for _, m := range all {
			if m.GetName() == "sluice_stream_followed_entries_total" {
				return int(m.GetMetric()[0].GetCounter().GetValue())
			}
		}
		return -1
	}
	for deadline := time.Now().Add(20 * time.Second); metric() < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("%d entries are followed, want %d", metric(), n)
		}
	}
	if got := metric(); got != n {
		w.t.Errorf("%d entries are followed, want %d", got, n)
	}
}

// TestTwoApisKnowEachOthersRequests: a key that was used at one is known at the
// other, and after a restart.
func TestTwoApisKnowEachOthersRequests(t *testing.T) {
	t.Parallel()
	a := open(t, stream.Config{})
	b := openOn(t, a.server, stream.Config{})
	pa, pb := a.publisher(), b.publisher()
	a.run(pa.Run)
	b.run(pb.Run)

	first, identified := submission("one", 100), submission("known", 100)
	identified.Identified = true
	for _, sub := range []*flow.Submission{first, identified} {
		if got, err := pa.Publish(t.Context(), sub); err != nil || got.Replayed {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
	b.followed(2)
	a.followed(0) // no other has sent anything

	misused := submission("one", 100)
	misused.Hash = "of another body"
	if _, err := pb.Publish(t.Context(), misused); !errors.Is(err, flow.ErrKeyReused) {
		t.Errorf("another body: got %v, want %v", err, flow.ErrKeyReused)
	}
	if got, err := pb.Publish(t.Context(), submission("one", 100)); err != nil || !got.Replayed {
		t.Errorf("the same request: got %+v, %v, want that it is replayed", got, err)
	}
	if got, err := pb.Publish(t.Context(), submission("known", 100)); err != nil || got.Replayed {
		t.Errorf("one of identified records: got %+v, %v: its records are what is known", got, err)
	}
	if n := len(a.all(0)); n != 4 {
		t.Errorf("the lane holds %d messages, want 4: what is replayed is sent again, and dropped later", n)
	}
	a.followed(2)

	again := openOn(t, a.server, stream.Config{})
	p := again.publisher()
	again.run(p.Run)
	again.followed(4)
	if got, err := p.Publish(t.Context(), submission("one", 100)); err != nil || !got.Replayed {
		t.Errorf("after a restart: got %+v, %v, want that it is replayed", got, err)
	}
}

// TestAnApiThatIsAloneFollowsNothing: its own entries are not read back, while
// changes come between them.
func TestAnApiThatIsAloneFollowsNothing(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{Poll: time.Hour})
	p := w.publisher()
	follow := func() {
		t.Helper()
		if err := w.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.Follow(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	follow()
	w.publish(p, "a", 50)
	follow()
	w.publish(p, "b", 50)
	follow()
	w.followed(0)
	w.recreate("FLOW_0")
	if err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.publish(w.publisher(), "made-again-by-another", 3)
	follow()
	w.followed(3)
}

// TestWhatIsHeard: 16 bytes a request, forgotten after the window or for newer
// ones, and never taken for another.
func TestWhatIsHeard(t *testing.T) {
	h := stream.NewHeard(10 * time.Minute)
	now := time.Now()
	if known, _ := h.Find("a", "1", now); known {
		t.Error("something is known in the beginning")
	}
	h.Add("a", "1", now)
	for _, c := range []struct {
		id, hash    string
		after       time.Duration
		known, same bool
	}{
		{"a", "1", 0, true, true}, {"a", "2", 0, true, false}, {"b", "1", 0, false, false},
		{"a", "1", 9 * time.Minute, true, true}, {"a", "1", 11 * time.Minute, false, false},
	} {
		if known, same := h.Find(c.id, c.hash, now.Add(c.after)); known != c.known || same != c.same {
			t.Errorf("%s with %s after %v: known %v, same %v", c.id, c.hash, c.after, known, same)
		}
	}
	h.Add("long ago", "1", now.Add(-time.Hour))
	if known, _ := h.Find("long ago", "1", now); known {
		t.Error("what was sent before the window is known")
	}
	bytes, requests := h.Bytes()
	if int(bytes) != 16*requests {
		t.Errorf("%d bytes for %d requests", bytes, requests)
	}
	for i := range requests / 2 {
		h.Add(fmt.Sprint("id ", i), "1", now)
	}
	known := 0
	for i := range requests / 2 {
		if is, same := h.Find(fmt.Sprint("id ", i), "1", now); is && same {
			known++
		} else if is {
			t.Fatal("a request was taken for another")
		}
	}
	if known < requests/2*95/100 {
		t.Errorf("%d of %d requests are known, half as many as there is room for", known, requests/2)
	}
	for i := range 4 * requests {
		h.Add(fmt.Sprint("newer ", i), "1", now)
	}
	if last, _ := h.Find(fmt.Sprint("newer ", 4*requests-1), "1", now); !last {
		t.Error("the newest request is not known")
	}
	if more, _ := h.Bytes(); more != bytes {
		t.Errorf("it takes %d bytes now", more)
	}
}

// BenchmarkFollow is what an entry costs one api that follows another, the
// server's part included, with so many requests in it.
func BenchmarkFollow(b *testing.B) {
	for _, requests := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("requests=%d", requests), func(b *testing.B) {
			w := open(b, stream.Config{Poll: time.Hour, MaxBytes: 4 << 30})
			sender, reader := w.publisher(), w.publisher()
			if err := reader.Follow(b.Context()); err != nil {
				b.Fatal(err)
			}
			const entries = 4000
			for i := range entries {
				subs := make([]*flow.Submission, requests)
				for r := range subs {
					subs[r] = submission(fmt.Sprintf("%d-%d", i, r), 500)
				}
				for _, err := range sender.SendUntil(time.Now().Add(time.Minute), subs...) {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
			if err := w.Refresh(context.Background()); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			before := benchtest.CPUTime(b)
			for range b.N {
				again := w.publisher() // begins with what the window holds
				if err := again.Follow(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((benchtest.CPUTime(b)-before).Microseconds())/float64(b.N*entries), "cpu-µs/entry")
		})
	}
}
