package stream_test

import (
	"strings"
	"sync"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/stream"
)

// TestTheExpiryLineMovesForwardOnly under concurrent moves.
func TestTheExpiryLineMovesForwardOnly(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	line := func() string {
		t.Helper()
		day, err := w.ExpiryLine(t.Context())
		fatal.If(t, err)
		return day
	}
	expect.Equal(t, "before anything has expired it", "", line())
	for _, step := range []struct{ to, want string }{{"", ""}, {"2025-11-21", "2025-11-21"}, {"2025-11-20", "2025-11-21"}, {"2025-12-01", "2025-12-01"}, {"", "2025-12-01"}} {
		if err := w.MoveExpiryLine(t.Context(), step.to); err != nil || line() != step.want {
			t.Errorf("moved to %q it is %q, %v, want %q", step.to, line(), err, step.want)
		}
	}
	var all sync.WaitGroup
	for _, day := range []string{"2026-01-03", "2026-01-05", "2026-01-01", "2026-01-04", "2026-01-02"} {
		all.Go(func() {
			expect.NoError(t, w.MoveExpiryLine(t.Context(), day))
		})
	}
	all.Wait()
	expect.Equal(t, "after five moves at once it", "2026-01-05", line())
	kv, err := w.jetStream().KeyValue(stream.LaneBucket)
	fatal.If(t, err)
	if _, err := kv.Put("expired", []byte("soon")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ExpiryLine(t.Context()); err == nil || !strings.Contains(err.Error(), `"soon" is not a day`) {
		t.Errorf("a damaged line: %v", err)
	}
}
