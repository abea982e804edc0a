package stream_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/change"
	"sluice/pkg/record"
	"sluice/pkg/stream"
)

func patch(user, id string, expected *uint64) *change.Change {
	return &change.Change{
		Kind: change.UserPatched, Target: change.Target{User: user}, By: user, At: time.UnixMilli(1_700_000_000_123).UTC(),
		Members: []string{"name"}, Body: json.RawMessage(`{"name":"n"}`), ID: id, Expected: expected,
	}
}

func TestAChangeGoesThroughLaneZero(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	c := patch("ann", "change-1", nil)
	seq, duplicate, err := p.PublishChange(t.Context(), c)
	if err != nil || seq != 1 || duplicate {
		t.Fatalf("got %d, %v, %v, want 1", seq, duplicate, err)
	}
	body, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	want := []record.Message{{
		Seq: 1, Topic: "flow.0.change." + c.Target.Key(), ID: "change-1", Body: body, Received: c.At, Subject: "ann",
	}}
	if diff := cmp.Diff(want, w.all(0)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	// Again, as after an answer that was lost.
	seq, duplicate, err = p.PublishChange(t.Context(), c)
	if err != nil || seq != 1 || !duplicate {
		t.Errorf("again: got %d, %v, %v, want 1 as a duplicate", seq, duplicate, err)
	}
}

// TestTheLastChangeOfALaneThatWasReset: nobody waits for one that was passed
// over, and one from before is no proof of one that comes after.
func TestTheLastChangeOfALaneThatWasReset(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	send := func(id string) uint64 {
		t.Helper()
		seq, _, err := p.PublishChange(t.Context(), patch("ann", id, nil))
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	wants := func(want change.Last) {
		t.Helper()
		got, err := w.LastChange(t.Context(), change.Target{User: "ann"})
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("last change: %v (-want +got):\n%s", err, diff)
		}
	}
	send("one")
	wants(change.Last{Seq: 1, Unread: true})
	reset, err := stream.NewPositions(w.Stream).Reset(t.Context(), 0, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	wants(change.Last{Seq: 1})
	send("two")
	wants(change.Last{Seq: 2, Applied: change.Place{Incarnation: reset.Incarnation, Seq: 2}})
}

func TestAChangeThatExpectsAnotherIsStale(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	w.publish(p, "record", 2)
	last := func() *uint64 {
		t.Helper()
		last, err := w.LastChange(t.Context(), change.Target{User: "ann"})
		if err != nil {
			t.Fatal(err)
		}
		return &last.Seq
	}
	if got := *last(); got != 0 {
		t.Fatalf("last change of a target without any: %d", got)
	}
	first := patch("ann", "change-1", last())
	seq, _, err := p.PublishChange(t.Context(), first)
	if err != nil || seq != 3 {
		t.Fatalf("the first: got %d, %v, want 3", seq, err)
	}
	if seq, _, err := p.PublishChange(t.Context(), patch("bob", "change-b", nil)); err != nil || seq != 4 {
		t.Fatalf("another target: got %d, %v, want 4", seq, err)
	}
	zero := uint64(0)
	if _, _, err := p.PublishChange(t.Context(), patch("ann", "change-2", &zero)); !errors.Is(err, change.ErrStale) {
		t.Fatalf("one that came too late: got %v, want %v", err, change.ErrStale)
	}
	if _, _, err := p.PublishChange(t.Context(), patch("ann", "", &zero)); !errors.Is(err, change.ErrStale) {
		t.Fatalf("one without an id: got %v, want %v", err, change.ErrStale)
	}
	if seq, _, err := p.PublishChange(t.Context(), patch("ann", "change-3", last())); err != nil || seq != 5 {
		t.Fatalf("one that knows the last: got %d, %v, want 5", seq, err)
	}
	// The first again, whose answer was lost: it is not stale, it is there.
	if seq, duplicate, err := p.PublishChange(t.Context(), first); err != nil || seq != 3 || !duplicate {
		t.Errorf("the first again: got %d, %v, %v, want 3 as a duplicate", seq, duplicate, err)
	}
	if n := len(w.all(0)); n != 5 {
		t.Errorf("the lane holds %d messages, want 5", n)
	}
}

func TestAChangeThatCanNotBe(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	p := w.publisher()
	big := patch("ann", "big", nil)
	big.Body = json.RawMessage(`{"name":"` + strings.Repeat("x", 17<<20) + `"}`)
	if _, _, err := p.PublishChange(t.Context(), big); !errors.Is(err, record.ErrTooLarge) {
		t.Errorf("too large: got %v, want %v", err, record.ErrTooLarge)
	}
	w.server.Stop()
	begun := time.Now()
	if _, _, err := p.PublishChange(t.Context(), patch("ann", "id", nil)); !errors.Is(err, record.ErrUnavailable) {
		t.Errorf("NATS away: got %v, want %v", err, record.ErrUnavailable)
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("NATS away: it took %v to say so, want at most 2s", took)
	}
	if _, err := w.LastChange(t.Context(), change.Target{User: "ann"}); !errors.Is(err, record.ErrUnavailable) {
		t.Errorf("last change while NATS is away: got %v, want %v", err, record.ErrUnavailable)
	}
}
