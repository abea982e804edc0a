package stream_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// TestAWaitEndsWhenItsMessagesAreStored: soon after the checkpoint of this stream has passed them,
// whatever follows.
func TestAWaitEndsWhenItsMessagesAreStored(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	if err := w.WaitStored(t.Context(), nil); err != nil {
		t.Fatalf("of nothing: %v", err)
	}
	p := w.publisher()
	w.publish(p, "id", 2)
	publish := func(id string) []flow.Place {
		t.Helper()
		receipt, err := p.Publish(t.Context(), submission(id, 10))
		fatal.If(t, err)
		return receipt.Places
	}
	places := publish("third")
	ends, err := w.Ends(t.Context(), "cluster-a")
	if diff := cmp.Diff([]flow.Place{{Stream: places[0].Stream, Seq: places[0].Seq}}, ends); diff != "" || err != nil {
		t.Errorf("ends of the source: %v (-want +got):\n%s", err, diff)
	}
	later := publish("fourth")
	soon := func(places []flow.Place) error {
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		return w.WaitStored(ctx, places)
	}
	positions := stream.NewLaneStates(w.Stream)
	at, err := positions.Read(t.Context(), 0)
	fatal.If(t, err)
	move := func(identity string, done uint64) {
		t.Helper()
		at.StreamID, at.Done = identity, done
		if at, err = positions.CompareAndSwap(t.Context(), 0, at); err != nil {
			t.Fatal(err)
		}
	}
	identity, err := positions.StreamID(t.Context(), 0)
	fatal.If(t, err)
	// The lane state names no message, so that only the lane's end is compared.
	for _, behind := range []func(){func() {}, func() { move(identity, 2) }, func() { move("FLOW_0@1", 3) }} {
		behind()
		if err := soon(places); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("at %+v: %v", at, err)
		}
	}
	var all sync.WaitGroup
	answers := make(chan error, 100)
	for range cap(answers) { // they share look-ups
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			answers <- w.WaitStored(ctx, places)
		})
	}
	time.Sleep(50 * time.Millisecond)
	expect.Equal(t, "have an answer before it is stored", 0, len(answers))
	move(identity, 3)
	moved := time.Now()
	all.Wait()
	if took := time.Since(moved); took > 5*time.Second {
		t.Errorf("they received it after %v", took)
	}
	for range cap(answers) {
		expect.NoError(t, <-answers)
	}
	if err := soon(append(places, later...)); !errors.Is(err, context.DeadlineExceeded) { // messages of others are not waited for
		t.Errorf("of the one behind it: %v", err)
	}
}

// TestNoWaitEndsByACheckpointOfAnotherTime: a lane is set back to a backup, its checkpoint is not.
// A later publish gets a sequence that the checkpoint has passed.
func TestNoWaitEndsByACheckpointOfAnotherTime(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	p := w.publisher()
	wait := func(places []flow.Place) error {
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancel()
		return w.WaitStored(ctx, places)
	}
	w.publish(p, "kept", 5)
	setBack := w.backup(0)
	w.publish(p, "lost", 4)
	lost := w.resend(p, submission("lost-4", 10)).Places
	w.swapTo(0, 10)
	if err := wait(lost); err != nil {
		t.Fatalf("before: %v", err)
	}
	setBack()
	fresh := w.resend(p, submission("fresh", 10)).Places
	fatal.When(t, fresh[0].Seq > 10, "it is message %d", fresh[0].Seq)
	if err := wait(fresh); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("message %d of a lane that was set back behind its checkpoint: %v", fresh[0].Seq, err)
	}
	w.publish(p, "more", 8)
	if err := wait(fresh); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("once other messages have taken the numbers: %v", err)
	}
	w.reset(12) // unstored messages up to there are given up
	if err := wait(fresh); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("message %d, which a reset skipped: %v", fresh[0].Seq, err)
	}
	if err := wait(lost); err == nil {
		t.Error("a message that is gone is reported as stored")
	}
	after := w.resend(p, submission("after", 10)).Places
	w.swapTo(0, after[0].Seq)
	if err := wait(after); err != nil {
		t.Errorf("behind the reset: %v", err)
	}
	after[0].ID = "of another message"
	if err := wait(after); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("another message of the same number: got %v, want an immediate error", err)
	}
}

// TestNoVoidRequestIsSaidToBeStored: the ingester skips it, and the checkpoint passes it.
func TestNoVoidRequestIsSaidToBeStored(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	p := w.publisher()
	w.publish(p, "known", 3)
	entry := func(id string, logEnd uint64, patience time.Duration) flow.Place {
		t.Helper()
		var e flow.EntryWriter
		e.Add(&flow.Message{ID: id, Hash: "h", Source: "cluster-a", Revision: 1, Body: []byte("[]"), Records: 1})
		ack, err := w.jetStream().PublishMsg(&nats.Msg{Subject: stream.RecordTopic(0), Data: e.Body(), Header: nats.Header{
			"Nats-Msg-Id": {id}, "Sluice-Entry": {e.Header(logEnd, patience)},
		}})
		fatal.If(t, err)
		return flow.Place{Stream: w.Lanes()[0].StreamID(), Seq: ack.Sequence, ID: id}
	}
	time.Sleep(20 * time.Millisecond)
	late, early, soon := entry("late", 1, 10*time.Millisecond), entry("early", 100, time.Hour), entry("soon", 4, time.Minute)
	w.sources()
	move := flow.Move{Source: "cluster-a", Revision: w.Sources()[0].Revision + 1}
	var err error
	if move.Seq, err = w.PutMarker(t.Context(), 0, stream.Source{Name: move.Source, Revision: move.Revision}); err != nil {
		t.Fatal(err)
	}
	moved := w.resend(p, submission("moved", 10)).Places[0]
	other := submission("other", 10)
	other.Source = "cluster-b"
	stays := w.resend(p, other).Places[0]
	at := w.swapTo(0, stays.Seq)
	at.Moves = []flow.Move{move}
	if _, err := stream.NewLaneStates(w.Stream).CompareAndSwap(t.Context(), 0, at); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for name, place := range map[string]flow.Place{
		"landed late": late, "before the lane was set back": early, "routed by an older list": moved,
	} {
		if err := w.WaitStored(ctx, []flow.Place{place}); !errors.Is(err, stream.ErrVoid) {
			t.Errorf("%s: got %v, want %v", name, err, stream.ErrVoid)
		}
	}
	for name, place := range map[string]flow.Place{"before the marker": soon, "of another source": stays} {
		if err := w.WaitStored(ctx, []flow.Place{place}); err != nil {
			t.Errorf("%s, message %d: %v; the marker is %d", name, place.Seq, err, move.Seq)
		}
	}
}
