package stream_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// outcomes are the resolutions of all dead letters.
func (w *world) outcomes() []stream.Resolution {
	w.t.Helper()
	var all []stream.Resolution
	for f, err := range stream.NewDeadLetters(w.Stream).Resolutions(context.Background()) {
		fatal.If(w.t, err)
		all = append(all, f)
	}
	return all
}

func (w *world) publishDead(all ...flow.Dead) {
	w.t.Helper()
	for _, d := range all {
		fatal.If(w.t, stream.NewDeadLetters(w.Stream).Publish(context.Background(), d))
	}
}

func TestTheOutcomeOfADeadLetterOutlivesIt(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	letters := stream.NewDeadLetters(w.Stream)
	whole := dead(4)
	whole.Index = -1
	w.publishDead(dead(2), dead(3), whole)
	list := w.list(stream.DeadFilter{})
	if _, err := letters.Replay(t.Context(), p, list[0]); err != nil {
		t.Fatal(err)
	}
	fatal.If(t, letters.Drop(t.Context(), list[2]))
	want := []stream.Resolution{
		{Seq: 3, Index: 3, Outcome: stream.OutcomeDead},
		{Seq: 2, Index: 3, Outcome: stream.OutcomeReplayed},
		{Seq: 4, Index: -1, Outcome: stream.OutcomeDropped},
	}
	expect.Equal(t, "outcomes", want, w.outcomes())

	// As after a crash of the ingester right after dead-lettering.
	w.publishDead(dead(2), whole)
	for _, d := range w.list(stream.DeadFilter{}) {
		receipt, err := letters.Replay(t.Context(), p, d)
		switch d.Message.Seq {
		case 2:
			expect.Not(t, err != nil || !receipt.Replayed, "replay of what was replayed: got %+v, %v, want that it was there already", receipt, err)
		case 4:
			expect.Not(t, !errors.Is(err, stream.ErrDropped), "replay of what was dropped: got %v, want %v", err, stream.ErrDropped)
		}
	}
	if got := len(w.all(0)); got != 2 { // 2 and 3, each once
		t.Errorf("%d messages in the lane, want 2", got)
	}
}

func TestOutcomesGoWithTheirMessages(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 1 << 20, DuplicateWindow: 100 * time.Millisecond})
	p := w.publisher()
	w.publish(p, "old", 10)
	w.publishDead(dead(3), dead(8))
	for _, d := range w.list(stream.DeadFilter{}) {
		fatal.If(t, stream.NewDeadLetters(w.Stream).Drop(t.Context(), d))
	}
	w.swapTo(0, 5)
	time.Sleep(300 * time.Millisecond)
	purger := stream.NewPurger(w.Stream, stream.PurgeConfig{History: time.Nanosecond})
	purger.SetMargin(0)
	fatal.If(t, purger.Purge(t.Context()))
	want := []stream.Resolution{{Seq: 8, Index: 3, Outcome: stream.OutcomeDropped}}
	expect.Equal(t, "outcomes after messages 1 to 5 were purged", want, w.outcomes())
}

// TestListingEndsWhenTheLastLettersGo: another process may drop letters during a listing.
func TestListingEndsWhenTheLastLettersGo(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	letters := stream.NewDeadLetters(w.Stream)
	var all []stream.DeadLetter
	for seq := uint64(1); seq <= 8; seq++ { // more than a listing prefetches
		d := dead(seq)
		d.Message.Encoding, d.Message.Body = flow.EncodingS2, make([]byte, 8<<20)
		w.publishDead(d)
	}
	all = w.list(stream.DeadFilter{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	n := 0
	for _, err := range letters.List(ctx, stream.DeadFilter{}) {
		fatal.If(t, err)
		if n++; n > 1 {
			continue
		}
		for _, d := range all[1:] {
			fatal.If(t, letters.Drop(ctx, d))
		}
	}
	expect.Not(t, n == 0 || n == len(all), "listed %d of %d letters, want some: the listing was not overtaken", n, len(all))
}
