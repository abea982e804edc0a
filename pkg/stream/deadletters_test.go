package stream_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/stream"
)

// dead is record 3 of message seq of lane 0.
func dead(seq uint64) flow.Dead {
	return flow.Dead{
		Message: flow.Message{
			Seq: seq, Topic: "flow.0.record", ID: "m-1", Body: []byte(`{"id":"r"}`), Records: 1,
			Received: time.UnixMilli(1_700_000_000_123).UTC(), Subject: "engine-a", Source: "cluster-a", TraceParent: "00-a-b-01",
		},
		Index: 3, Code: "too_deep", Reason: "The record is nested too deeply.",
	}
}

// list returns all dead letters that match.
func (w *world) list(f stream.DeadFilter) []stream.DeadLetter {
	w.t.Helper()
	var all []stream.DeadLetter
	for d, err := range stream.NewDeadLetters(w.Stream).List(context.Background(), f) {
		fatal.If(w.t, err)
		all = append(all, d)
	}
	return all
}

var ignoreOrigin = cmpopts.IgnoreUnexported(stream.DeadLetter{})

func TestDeadLettersKeepTheOriginalBytes(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	letters := stream.NewDeadLetters(w.Stream)
	whole := dead(7)
	whole.Index, whole.Code, whole.Message.Encoding, whole.Message.Body = -1, "broken_message", flow.EncodingS2, []byte{1, 2, 3}
	big := dead(8)
	big.Message.Body = make([]byte, 4<<20) // larger than any message
	for i := range big.Message.Body {
		big.Message.Body[i] = byte(rand.N(4))
	}
	var want []stream.DeadLetter
	for i, d := range []flow.Dead{dead(5), whole, big} {
		for range 3 { // as after crashes
			fatal.If(t, letters.Publish(t.Context(), d))
		}
		want = append(want, stream.DeadLetter{Number: uint64(i + 1), Dead: d})
	}
	approx := cmp.Options{cmpopts.IgnoreFields(stream.DeadLetter{}, "At"), cmp.Comparer(bytes.Equal)}
	expect.Equal(t, "dead letters", want, w.list(stream.DeadFilter{}), ignoreOrigin, approx)
	if n, err := letters.Room(t.Context()); n.Letters != 3 || err != nil {
		t.Errorf("count: got %d, %v, want 3", n.Letters, err)
	}
	got, ok, err := letters.Get(t.Context(), 2)
	if diff := cmp.Diff(want[1], got, ignoreOrigin, approx); diff != "" || !ok || err != nil {
		t.Errorf("get: %v, %v (-want +got):\n%s", ok, err, diff)
	}
	fatal.If(t, letters.Drop(t.Context(), got))
	if err := letters.Drop(t.Context(), got); err != nil {
		t.Errorf("drop again: %v", err)
	}
	if _, ok, err := letters.Get(t.Context(), 2); ok || err != nil {
		t.Errorf("get after drop: got %v, %v", ok, err)
	}
	expect.Equal(t, "letters after one was dropped", 2, len(w.list(stream.DeadFilter{})))
}

// TestTheSameSequenceOfAnotherLifeIsAnother: a reset lane keeps its stream, and its messages get another incarnation.
func TestTheSameSequenceOfAnotherLifeIsAnother(t *testing.T) {
	w := open(t, stream.Config{})
	var want []uint64
	for _, life := range []uint64{1_700_000_000_000, 1_700_000_000_001} {
		d := dead(5)
		d.Message.Incarnation = life
		w.publishDead(d, d)
		want = append(want, life)
	}
	var got, outcomes []uint64
	for _, d := range w.list(stream.DeadFilter{}) {
		got = append(got, d.Message.Incarnation)
	}
	for _, f := range w.outcomes() {
		outcomes = append(outcomes, f.Incarnation)
	}
	expect.Equal(t, "incarnations of the letters, and of their outcomes", [][]uint64{want, want}, [][]uint64{got, outcomes})
}

func TestDeadLettersAreFiltered(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 1 << 20})
	if _, err := w.AddLane(t.Context()); err != nil {
		t.Fatal(err)
	}
	letters := stream.NewDeadLetters(w.Stream)
	add := func(lane int, seq uint64, code string) {
		d := dead(seq)
		d.Message.Lane, d.Code = lane, code
		fatal.If(t, letters.Publish(t.Context(), d))
	}
	add(0, 1, "a")
	add(1, 2, "b")
	time.Sleep(20 * time.Millisecond)
	middle, err := w.Now(t.Context())
	fatal.If(t, err)
	room, err := letters.Room(t.Context())
	fatal.If(t, err)
	time.Sleep(20 * time.Millisecond)
	add(0, 3, "b")
	one := 1
	for name, c := range map[string]struct {
		filter stream.DeadFilter
		want   []uint64
	}{
		"all":             {stream.DeadFilter{}, []uint64{1, 2, 3}},
		"of one lane":     {stream.DeadFilter{Lane: &one}, []uint64{2}},
		"with one code":   {stream.DeadFilter{Code: "b"}, []uint64{2, 3}},
		"since":           {stream.DeadFilter{Since: middle}, []uint64{3}},
		"up to a number":  {stream.DeadFilter{Upto: room.Last}, []uint64{1, 2}},
		"none of a code":  {stream.DeadFilter{Code: "c"}, nil},
		"none since then": {stream.DeadFilter{Since: time.Now().Add(time.Hour)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []uint64
			for _, d := range w.list(c.filter) {
				got = append(got, d.Message.Seq)
			}
			expect.Equal(t, "sequences", c.want, got)
		})
	}
}

// TestDeadLettersWithoutRoom: the error and the metrics report it; replaying or dropping some
// needs no room.
func TestDeadLettersWithoutRoom(t *testing.T) {
	const room = 20 << 10
	w := open(t, stream.Config{DeadMaxBytes: room})
	letters := stream.NewDeadLetters(w.Stream)
	next := uint64(0)
	fill := func() {
		t.Helper()
		var err error
		for ; err == nil && next < 1000; next++ {
			err = letters.Publish(t.Context(), dead(next+1))
		}
		fatal.When(t, !errors.Is(err, flow.ErrFull) || !strings.Contains(err.Error(), "--dead-max-bytes"), "got %v, want %v and the remedy", err, flow.ErrFull)
	}
	fill()
	all := w.list(stream.DeadFilter{})
	shown := func(name string) float64 { return value(t, w.reg, name, nil) }
	w.waitFor("sluice_stream_dead_letters", func(v float64) bool { return v == float64(len(all)) })
	bytes := w.waitFor("sluice_stream_dead_bytes", func(v float64) bool { return v > 0.8*room })
	if bytes > room || shown("sluice_stream_dead_max_bytes") != room {
		t.Errorf("%v bytes of %v are shown, want %d at most", bytes, shown("sluice_stream_dead_max_bytes"), room)
	}
	if err := letters.Drop(t.Context(), all[0]); err != nil {
		t.Errorf("drop when there is no room: %v", err)
	}
	fill()
	if _, err := letters.Replay(t.Context(), w.publisher(), all[1]); err != nil {
		t.Errorf("replay when there is no room: %v", err)
	}
	fill()
}

// waitFor waits until a gauge has a wanted value, and returns it.
func (w *world) waitFor(name string, want func(float64) bool) float64 {
	w.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		v := value(w.t, w.reg, name, nil)
		if want(v) {
			return v
		}
		fatal.When(w.t, time.Now().After(deadline), "%s stays at %v", name, v)
	}
}

// TestLettersOfTheApi: the api's dead letters never were in a lane. A document posted several times is one letter per
// source, and is replayed like others.
func TestLettersOfTheApi(t *testing.T) {
	w := open(t, stream.Config{})
	of := func(source, body string) flow.Dead {
		return flow.Dead{
			Message: flow.Message{Source: source, Subject: "engine", Received: time.UnixMilli(1_763_700_000_000).UTC(), Records: 1, Body: []byte(body)},
			Index:   -1, Code: record.CodeMissing, Reason: "the document is not a record",
		}
	}
	w.publishDead(of("a", `{"x":1}`), of("a", `{"x":1}`), of("b", `{"x":1}`), of("a", `{"x":2}`))
	var got []string
	for _, d := range w.list(stream.DeadFilter{}) {
		expect.Not(t, d.Message.Lane != stream.NoLane, "lane %d, want %d", d.Message.Lane, stream.NoLane)
		got = append(got, d.Message.Source+" "+string(d.Message.Body))
	}
	expect.Equal(t, "letters", []string{`a {"x":1}`, `b {"x":1}`, `a {"x":2}`}, got)
	letters := stream.NewDeadLetters(w.Stream)
	for _, d := range w.list(stream.DeadFilter{}) {
		if _, err := letters.Replay(t.Context(), w.publisher(), d); err != nil {
			t.Fatal(err)
		}
	}
	if left, stored := len(w.list(stream.DeadFilter{})), len(w.all(0)); left != 0 || stored != 3 {
		t.Errorf("%d letters left, %d messages in the lane, want none and 3", left, stored)
	}
}

// TestNotesNameTheUserWhoSettledALetter: notes name the actor of replays and drops.
func TestNotesNameTheUserWhoSettledALetter(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	letters := stream.NewDeadLetters(w.Stream)
	for seq := range uint64(3) {
		fatal.If(t, letters.Publish(context.Background(), dead(seq+1)))
	}
	for _, d := range w.list(stream.DeadFilter{Heads: true}) {
		expect.Not(t, len(d.Message.Body) > 0 || d.Code != "too_deep" || d.Message.Source != "cluster-a", "without bodies: %+v", d)
	}
	all := w.list(stream.DeadFilter{})
	if _, err := letters.As("ann").Replay(context.Background(), stream.NewPublisher(w.Stream), all[0]); err != nil {
		t.Fatal(err)
	}
	for by, d := range map[string]stream.DeadLetter{"Änn ✓ a: b": all[1], "": all[2]} {
		fatal.If(t, letters.As(by).Drop(context.Background(), d))
	}
	got := map[uint64]string{}
	for note, err := range letters.Settled(context.Background()) {
		fatal.If(t, err)
		got[note.Seq] = note.By + " " + note.Resolution.Outcome + " " + note.Code
	}
	want := map[uint64]string{1: "ann replayed too_deep", 2: "Änn ✓ a: b dropped too_deep", 3: " dropped too_deep"}
	expect.Equal(t, "notes", want, got)
}
