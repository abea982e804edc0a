package stream_test

import (
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/stream"
)

// addLane adds a lane and waits until w has found it.
func (w *world) addLane() int {
	w.t.Helper()
	n, err := w.AddLane(w.t.Context())
	fatal.If(w.t, err)
	return n
}

func TestLag(t *testing.T) {
	w := open(t, stream.Config{})
	w.publish(w.publisher(), "id", 10)
	w.swapTo(0, 7)
	lags, err := w.Lag(t.Context())
	fatal.When(t, err != nil || len(lags) != 1, "got %+v, %v", lags, err)
	l := lags[0]
	expect.Not(t, l.Lane != 0 || l.Done != 7 || l.Last != 10 || l.Messages != 3 || l.Bytes < 300 || l.Bytes > 2000, "got %+v, want 3 messages of a few hundred bytes", l)
}
