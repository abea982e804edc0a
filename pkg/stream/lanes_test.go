package stream_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/pkg/record"
	"sluice/pkg/stream"
)

// addLane adds a lane and waits until w knows it.
func (w *world) addLane() int {
	w.t.Helper()
	n, err := w.AddLane(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func TestANewLaneTakesItsShare(t *testing.T) {
	w := open(t, stream.Config{LaneDelay: time.Millisecond, MaxBytes: 16 << 20, DuplicateWindow: 100 * time.Millisecond})
	other := openOn(t, w.server, stream.Config{LaneDelay: time.Millisecond})
	w.addLane()
	w.addLane()
	time.Sleep(3 * time.Second) // past the change
	if got := len(other.Lanes()); got != 3 {
		t.Fatalf("another process knows %d lanes, want 3", got)
	}
	p := other.publisher()
	for i := range 300 {
		if _, err := p.Publish(t.Context(), submission(fmt.Sprintf("id-%d", i), 10)); err != nil {
			t.Fatal(err)
		}
	}
	sum := 0
	for lane := range 3 {
		n := len(w.all(lane))
		if n < 60 || n > 140 {
			t.Errorf("lane %d took %d of 300, want about 100", lane, n)
		}
		sum += n
	}
	if sum != 300 {
		t.Errorf("the lanes hold %d messages, want 300", sum)
	}
}

func TestARepeatIsKnownAfterItsLaneChanged(t *testing.T) {
	w := open(t, stream.Config{LaneDelay: 500 * time.Millisecond, MaxBytes: 16 << 20})
	p := w.publisher()
	publish := func(want record.Receipt) {
		t.Helper()
		for i := range 30 {
			sizes := [][]int{{10}, {64 << 10}, {10, 20}}[i%3]
			got, err := p.Publish(t.Context(), submission(fmt.Sprintf("id-%d", i), sizes...))
			if err != nil || got != want {
				t.Fatalf("id-%d: got %+v, %v, want %+v", i, got, err, want)
			}
		}
	}
	publish(record.Receipt{})
	w.addLane()
	publish(record.Receipt{Replayed: true}) // still on the old lane
	time.Sleep(600 * time.Millisecond)
	publish(record.Receipt{Replayed: true}) // the old lane is asked
	w.addLane()
	time.Sleep(3 * time.Second)
	publish(record.Receipt{Replayed: true})
	if got := len(w.all(0)); got != 40 {
		t.Errorf("lane 0 holds %d messages, want 40", got)
	}
	for lane := 1; lane <= 2; lane++ {
		if got := len(w.all(lane)); got != 0 {
			t.Errorf("lane %d holds %d messages, want none", lane, got)
		}
	}
}

func TestARepeatToAnotherProcessAroundTheChangeOfItsLane(t *testing.T) {
	w := open(t, stream.Config{LaneDelay: 2 * time.Second, MaxBytes: 16 << 20})
	other := openOn(t, w.server, stream.Config{LaneDelay: 2 * time.Second})
	publishers := []*stream.Publisher{w.publisher(), other.publisher()}
	w.addLane()
	end := time.Now().Add(6 * time.Second)
	var n atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for time.Now().Before(end) {
				id := fmt.Sprintf("id-%d", n.Add(1))
				for i := range 3 {
					if _, err := publishers[i%2].Publish(t.Context(), submission(id, 10)); err != nil {
						t.Error(err)
					}
				}
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	seen := map[string]int{}
	for lane := range 2 {
		list := w.all(lane)
		for _, m := range list {
			seen[m.ID]++
		}
		t.Logf("lane %d took %d of %d", lane, len(list), n.Load())
		if len(list) < 10 {
			t.Errorf("lane %d took %d messages: the test shows nothing", lane, len(list))
		}
	}
	if int64(len(seen)) != n.Load() {
		t.Errorf("%d ids are stored, want %d", len(seen), n.Load())
	}
	for id, times := range seen {
		if times != 1 {
			t.Errorf("%s is stored %d times", id, times)
		}
	}
}

func TestLag(t *testing.T) {
	w := open(t, stream.Config{})
	w.publish(w.publisher(), "id", 10)
	w.swapTo(0, 7)
	lags, err := w.Lag(t.Context())
	if err != nil || len(lags) != 1 {
		t.Fatalf("got %+v, %v", lags, err)
	}
	l := lags[0]
	if l.Lane != 0 || l.Done != 7 || l.Last != 10 || l.Messages != 3 || l.Bytes < 300 || l.Bytes > 2000 {
		t.Errorf("got %+v, want 3 messages of a few hundred bytes", l)
	}
}
