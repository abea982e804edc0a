package state_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/change"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/state"
	"sluice/pkg/stream"
)

func fieldPut(t *testing.T, subject, field string) *change.Change {
	t.Helper()
	c, _, err := change.NewFieldPut("t", field, subject, []byte(`{"name":"n"}`))
	fatal.If(t, err)
	return c
}

func fieldDeleted(t *testing.T, subject, field string) *change.Change {
	t.Helper()
	c, err := change.NewFieldDelete("t", field, subject, 0)
	fatal.If(t, err)
	c.Expected = nil
	return c
}

func TestUsageCountsFieldsBySubject(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.publish(fieldPut(t, "ann", "a"), fieldPut(t, "ann", "b"), fieldPut(t, "bob", "c"), fieldPut(t, "bob", "b"), fieldDeleted(t, "ann", "d"))
	w.apply(w.messages()...)
	usage := state.NewUsage(w.open, slog.New(slog.DiscardHandler))
	if _, _, ready := usage.Fields("ann", change.Target{Table: "t", Field: "a"}); ready {
		t.Error("it has a count before its first look")
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- usage.Run(ctx) }()
	defer func() { stop(); <-done }()
	want := func(subject, field string, n int, own bool) {
		t.Helper()
		var got int
		var its, ready bool
		for begun := time.Now(); time.Since(begun) < 10*time.Second; time.Sleep(5 * time.Millisecond) {
			if got, its, ready = usage.Fields(subject, change.Target{Table: "t", Field: field}); ready && got == n && its == own {
				return
			}
		}
		t.Errorf("%s has %d fields, %s is one of them: %t, ready %t; want %d, %t", subject, got, field, its, ready, n, own)
	}
	want("ann", "a", 2, true)  // a, and the tombstone of d
	want("ann", "b", 2, false) // bob has changed it since
	want("bob", "b", 2, true)
	want("eve", "b", 0, false)

	usage.Expect("eve", change.Target{Table: "t", Field: "b"}, 10)
	want("eve", "b", 1, true)
	want("bob", "b", 1, false)
	w.publish(fieldPut(t, "eve", "b"), fieldPut(t, "eve", "e"))
	w.apply(w.messages()...)
	want("eve", "e", 2, true)
	expect.Not(t, usage.Full(), "it is full")
}

// TestTheStateHasASize: it is full before NATS refuses a write.
func TestTheStateHasASize(t *testing.T) {
	t.Parallel()
	w := open(t)
	if got, err := w.bucket.MaxBytes(t.Context()); err != nil || got != 256<<20 {
		t.Errorf("a new bucket takes %d bytes, %v", got, err)
	}
	const limit = 20_000
	if _, err := stream.Open(t.Context(), w.server.Connect(), stream.Config{StateMaxBytes: limit}, slog.New(slog.DiscardHandler), prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	usage := state.NewUsage(w.open, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- usage.Run(ctx) }()
	defer func() { stop(); <-done }()
	for begun, n := time.Now(), 0; !usage.Full(); n++ {
		fatal.When(t, time.Since(begun) > 20*time.Second, "not full after %d entries", n)
		if _, err := w.bucket.Put(t.Context(), change.Target{User: "u" + string(rune('a'+n%26)) + string(rune('a'+n/26))}.Key(), make([]byte, 500)); err != nil {
			t.Fatalf("entry %d is refused, and it is not full: %v", n, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	js, err := jetstream.New(w.server.Connect())
	fatal.If(t, err)
	bucket, err := js.Stream(t.Context(), "KV_"+stream.StateBucket)
	fatal.If(t, err)
	if got := bucket.CachedInfo().State.Bytes; got < limit*7/10 {
		t.Errorf("full at %d of %d bytes", got, limit)
	}
}

// TestOldTombstonesAreForgotten unless the stream still holds a change of the field, or the field
// was put again.
func TestOldTombstonesAreForgotten(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.publish(fieldPut(t, "ann", "a"), fieldDeleted(t, "ann", "a"), fieldDeleted(t, "ann", "b"), fieldPut(t, "ann", "c"))
	messages := w.messages()
	w.apply(messages...)
	old := state.NewSweeper(state.SweepConfig{Tombstones: time.Nanosecond}, w.store, w.stream, slog.New(slog.DiscardHandler), w.reg)
	young := state.NewSweeper(state.SweepConfig{Tombstones: time.Hour}, w.store, w.stream, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	sweep := func(s *state.Sweeper, want int) {
		t.Helper()
		fatal.If(t, s.Sweep(t.Context()))
		if got := w.documents(); len(got) != want {
			t.Errorf("left is %v, want %d", got, want)
		}
	}
	sweep(old, 3) // the stream holds all of them
	js, err := jetstream.New(w.server.Connect())
	fatal.If(t, err)
	lane, err := js.Stream(t.Context(), stream.LaneName(0))
	fatal.If(t, err)
	fatal.If(t, lane.Purge(t.Context()))
	sweep(young, 3)
	key := change.Target{Table: "t", Field: "b"}.Key()
	kv, err := w.bucket.Get(t.Context(), key)
	fatal.If(t, err)
	revision, err := w.bucket.Put(t.Context(), key, kv.Value()) // a concurrent writer comes first
	fatal.If(t, err)
	fatal.If(t, w.stream.ForgetState(t.Context(), key, revision-1))
	sweep(young, 3)
	sweep(old, 1)
	if _, err := w.bucket.Get(t.Context(), key); err == nil {
		t.Error("a tombstone is still there")
	}
	for e, err := range w.store.Entries(t.Context(), ">") {
		if err != nil || e.Target.Field != "c" {
			t.Errorf("left is %+v, %v", e.Target, err)
		}
	}
}
