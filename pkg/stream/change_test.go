package stream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"sluice/pkg/change"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
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
	fatal.When(t, err != nil || seq != 1 || duplicate, "got %d, %v, %v, want 1", seq, duplicate, err)
	body, err := c.Encode()
	fatal.If(t, err)
	want := []flow.Message{{
		Seq: 1, Topic: "flow.0.change." + c.Target.Key(), ID: "change-1", Body: body, Received: c.At, Subject: "ann",
	}}
	expect.Equal(t, "messages", want, w.all(0))
	// Again, as after a lost answer.
	seq, duplicate, err = p.PublishChange(t.Context(), c)
	expect.Not(t, err != nil || seq != 1 || !duplicate, "again: got %d, %v, %v, want 1 as a duplicate", seq, duplicate, err)
}

// TestTheLastChangeOfALaneThatWasReset: a change keeps its incarnation; an earlier change does not
// prove a later one.
func TestTheLastChangeOfALaneThatWasReset(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	send := func(id string) uint64 {
		t.Helper()
		seq, _, err := p.PublishChange(t.Context(), patch("ann", id, nil))
		fatal.If(t, err)
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
	w.appliedTo(1)
	reset, err := stream.NewLaneStates(w.Stream).Reset(t.Context(), 0, 1, 0)
	fatal.If(t, err)
	wants(change.Last{Seq: 1})
	send("two")
	wants(change.Last{Seq: 2, Applied: change.Place{Incarnation: reset.Incarnation(), Seq: 2}})
}

func TestAChangeThatExpectsAnotherIsStale(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	w.publish(p, "record", 2)
	last := func() *uint64 {
		t.Helper()
		last, err := w.LastChange(t.Context(), change.Target{User: "ann"})
		fatal.If(t, err)
		return &last.Seq
	}
	if got := *last(); got != 0 {
		t.Fatalf("last change of a target without any: %d", got)
	}
	first := patch("ann", "change-1", last())
	seq, _, err := p.PublishChange(t.Context(), first)
	fatal.When(t, err != nil || seq != 3, "the first: got %d, %v, want 3", seq, err)
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
		t.Fatalf("one after the last: got %d, %v, want 5", seq, err)
	}
	// The first again, as after a lost answer: it exists, so it is not stale.
	if seq, duplicate, err := p.PublishChange(t.Context(), first); err != nil || seq != 3 || !duplicate {
		t.Errorf("the first again: got %d, %v, %v, want 3 as a duplicate", seq, duplicate, err)
	}
	expect.Equal(t, "the lane holds messages", 5, len(w.all(0)))
}

func TestAnInvalidChange(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	p := w.publisher()
	big := patch("ann", "big", nil)
	big.Body = json.RawMessage(`{"name":"` + strings.Repeat("x", 17<<20) + `"}`)
	if _, _, err := p.PublishChange(t.Context(), big); !errors.Is(err, flow.ErrTooLarge) {
		t.Errorf("too large: got %v, want %v", err, flow.ErrTooLarge)
	}
	w.server.Stop()
	begun := time.Now()
	if _, _, err := p.PublishChange(t.Context(), patch("ann", "id", nil)); !errors.Is(err, flow.ErrUnavailable) {
		t.Errorf("NATS away: got %v, want %v", err, flow.ErrUnavailable)
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("NATS away: it took %v, want at most 2s", took)
	}
	if _, err := w.LastChange(t.Context(), change.Target{User: "ann"}); !errors.Is(err, flow.ErrUnavailable) {
		t.Errorf("last change while NATS is away: got %v, want %v", err, flow.ErrUnavailable)
	}
}

// mixed publishes changes of ann among records: messages 2, 4, 6, … of 2n.
func (w *world) mixed(p *stream.Publisher, prefix string, n int) {
	w.t.Helper()
	for i := range n {
		w.publish(p, fmt.Sprint(prefix, i), 1)
		if _, _, err := p.PublishChange(w.t.Context(), patch("ann", fmt.Sprint(prefix, "-change-", i), nil)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// appliedTo writes a checkpoint that counts changes up to done as applied.
func (w *world) appliedTo(done uint64) flow.LaneState {
	w.t.Helper()
	positions := stream.NewChangeStates(w.Stream)
	pos, err := positions.Read(w.t.Context(), 0)
	if err == nil {
		pos.StreamID, err = positions.StreamID(w.t.Context(), 0)
	}
	fatal.If(w.t, err)
	if pos.Incarnation() == 0 {
		pos = pos.WithIncarnation(1, 1)
	}
	pos.Owner, pos.Done, pos.Stamp = "test", done, w.stamp(0, done)
	if pos, err = positions.CompareAndSwap(w.t.Context(), 0, pos); err != nil {
		w.t.Fatal(err)
	}
	return pos
}

// TestChangesAreReadAlone: in order and without gaps, also over a server restart and where
// messages between them are gone.
func TestChangesAreReadAlone(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	p := w.publisher()
	w.mixed(p, "before", 5)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := w.OpenChanges(ctx, 12); !errors.Is(err, flow.ErrGap) {
		t.Errorf("behind the end: got %v, want %v", err, flow.ErrGap)
	}
	fatal.If(t, w.jetStream().PurgeStream(stream.LaneName(0), &nats.StreamPurgeRequest{Sequence: 4}))
	c, err := w.OpenChanges(ctx, 3)
	fatal.If(t, err)
	defer c.Close()
	next := func(want uint64) {
		t.Helper()
		e, err := c.Next(ctx)
		fatal.When(t, err != nil || e.Seq != want || len(e.Messages) != 1 || !strings.HasPrefix(e.Messages[0].Topic, stream.ChangePrefix), "next: got %+v, %v, want change %d", e, err, want)
	}
	next(4)
	next(6)
	w.server.Restart()
	w.connected(ctx)
	w.mixed(p, "after", 3)
	for _, seq := range []uint64{8, 10, 12, 14, 16} {
		next(seq)
	}
}

// TestAPurgeKeepsWhatWaitsToBeApplied for as long as it has been stored.
func TestAPurgeKeepsWhatWaitsToBeApplied(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{DuplicateWindow: 100 * time.Millisecond})
	w.mixed(w.publisher(), "m", 5)
	w.swapTo(0, 10)
	time.Sleep(300 * time.Millisecond)
	purger := stream.NewPurger(w.Stream, stream.PurgeConfig{History: time.Nanosecond})
	purger.SetMargin(0)
	purged := func(first uint64) {
		t.Helper()
		fatal.If(t, purger.Purge(t.Context()))
		fatal.If(t, w.Refresh(t.Context()))
		expect.Equal(t, "the lane begins at", first, w.Lanes()[0].First)
	}
	lag := func(want stream.ChangeLag) {
		t.Helper()
		got, err := w.ChangeLag(t.Context())
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("lag of changes: %v (-want +got):\n%s", err, diff)
		}
	}
	lag(stream.ChangeLag{Next: 2, Waiting: 5})
	purged(2) // none is applied
	w.appliedTo(4)
	lag(stream.ChangeLag{Done: 4, Next: 6, Waiting: 3})
	purged(6)
	w.appliedTo(15) // the lane had more: the checkpoint is not of the present messages
	lag(stream.ChangeLag{Next: 6, Waiting: 3})
	purged(6)
	if _, err := stream.NewLaneStates(w.Stream).Reset(t.Context(), 0, 10, 0); err != nil {
		t.Fatal(err)
	}
	lag(stream.ChangeLag{Done: 10})
	purged(11)
}

// TestAResetTakesTheChangesAlong: behind the same message they have one incarnation, above both
// earlier ones; also during a move.
func TestAResetTakesTheChangesAlong(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	w.mixed(w.publisher(), "m", 3)
	before := w.appliedTo(6)
	ahead := uint64(time.Now().Add(time.Hour).UnixMilli())
	before = before.WithIncarnation(ahead, 1)
	before, err := stream.NewChangeStates(w.Stream).CompareAndSwap(t.Context(), 0, before)
	fatal.If(t, err)
	at, err := stream.NewLaneStates(w.Stream).Reset(t.Context(), 0, 3, 0)
	fatal.When(t, err != nil || at.Incarnation() != ahead+1, "got %+v, %v, want incarnation %d", at, err, ahead+1)
	changes, err := stream.NewChangeStates(w.Stream).Read(t.Context(), 0)
	want := flow.LaneState{Incarnations: []flow.Incarnation{{ID: 1, First: 1}, {ID: ahead, First: 1}, {ID: ahead + 1, First: 4}}, StreamID: at.StreamID, Done: 3, Stamp: w.stamp(0, 3), BaseStamp: w.stamp(0, 3), Revision: changes.Revision}
	if diff := cmp.Diff(want, changes); diff != "" || err != nil {
		t.Errorf("changes: %v (-want +got):\n%s", err, diff)
	}
	if _, err := stream.NewChangeStates(w.Stream).CompareAndSwap(t.Context(), 0, before); !errors.Is(err, flow.ErrNotOwner) {
		t.Errorf("previous owner: got %v, want %v", err, flow.ErrNotOwner)
	}
	last, err := w.LastChange(t.Context(), change.Target{User: "ann"})
	if diff := cmp.Diff(change.Last{Seq: 6, Applied: change.Place{Incarnation: ahead + 1, Seq: 6}}, last); diff != "" || err != nil {
		t.Errorf("last change: %v (-want +got):\n%s", err, diff)
	}
}

// TestTheLastChangeFollowsThePositionOfChanges whatever the checkpoint of records is.
func TestTheLastChangeFollowsThePositionOfChanges(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	w.mixed(w.publisher(), "m", 1)
	wants := func(want change.Last) {
		t.Helper()
		got, err := w.LastChange(t.Context(), change.Target{User: "ann"})
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("last change: %v (-want +got):\n%s", err, diff)
		}
	}
	wants(change.Last{Seq: 2, Unread: true})
	w.swapTo(0, 1)
	wants(change.Last{Seq: 2, Unread: true})
	pos := w.appliedTo(1)
	wants(change.Last{Seq: 2, Applied: change.Place{Incarnation: pos.Incarnation(), Seq: 2}})
}
