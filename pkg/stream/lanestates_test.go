package stream_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

func TestAPositionMovesByCompareAndSwap(t *testing.T) {
	w := open(t, stream.Config{})
	w.publish(w.publisher(), "id", 20)
	positions := stream.NewLaneStates(w.Stream)
	pos, err := positions.Read(t.Context(), 0)
	fatal.If(t, err)
	identity, err := positions.StreamID(t.Context(), 0)
	fatal.If(t, err)
	if diff := cmp.Diff(flow.LaneState{}, pos); diff != "" {
		t.Fatalf("lane state of a new lane (-want +got):\n%s", diff)
	}

	pos.StreamID, pos.Owner, pos.Claim = identity, "one", &flow.Claim{First: 1, Last: 10, Hash: "h"}
	first, err := positions.CompareAndSwap(t.Context(), 0, pos)
	fatal.If(t, err)
	// The answer was lost: the same swap again is no conflict.
	again, err := positions.CompareAndSwap(t.Context(), 0, pos)
	if err != nil || again.Revision != first.Revision {
		t.Fatalf("the same swap again: got revision %d, %v, want %d", again.Revision, err, first.Revision)
	}
	// Another ingester that read the same state.
	other := pos
	other.Owner = "two"
	if _, err := positions.CompareAndSwap(t.Context(), 0, other); !errors.Is(err, flow.ErrNotOwner) {
		t.Fatalf("got %v, want %v", err, flow.ErrNotOwner)
	}
	// The other reads and takes over; the first is fenced.
	if other, err = positions.Read(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	other.Owner = "two"
	if other, err = positions.CompareAndSwap(t.Context(), 0, other); err != nil {
		t.Fatal(err)
	}
	first.Done, first.Claim = 10, nil
	if _, err := positions.CompareAndSwap(t.Context(), 0, first); !errors.Is(err, flow.ErrNotOwner) {
		t.Fatalf("got %v, want %v", err, flow.ErrNotOwner)
	}
	got, err := openOn(t, w.server, stream.Config{}).position(0)
	fatal.If(t, err)
	expect.Equal(t, "lane state read by another process", other, got)
}

func (w *world) position(lane int) (flow.LaneState, error) {
	return stream.NewLaneStates(w.Stream).Read(w.t.Context(), lane)
}

// swapTo writes a lane state that counts everything up to done as stored.
func (w *world) swapTo(lane int, done uint64) flow.LaneState {
	w.t.Helper()
	pos, err := w.position(lane)
	fatal.If(w.t, err)
	if pos.StreamID, err = stream.NewLaneStates(w.Stream).StreamID(w.t.Context(), lane); err != nil {
		w.t.Fatal(err)
	}
	pos.Owner, pos.Done, pos.Stamp, pos.DedupFrom = "test", done, w.stamp(lane, done), done+1
	if pos, err = stream.NewLaneStates(w.Stream).CompareAndSwap(w.t.Context(), lane, pos); err != nil {
		w.t.Fatal(err)
	}
	return pos
}

// stamp is the server's timestamp of a message; 0 when the lane does not have it.
func (w *world) stamp(lane int, seq uint64) int64 {
	w.t.Helper()
	msg, err := w.jetStream().GetMsg(stream.LaneName(lane), seq)
	if errors.Is(err, nats.ErrMsgNotFound) {
		return 0
	}
	fatal.If(w.t, err)
	return msg.Time.UnixNano()
}

func TestALaneWhoseDataIsOfAnEarlierTimeIsFound(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	p := w.publisher()
	w.publish(p, "id", 10)

	w.swapTo(0, 10)
	if _, err := w.position(0); err != nil {
		t.Fatalf("a lane state that fits: %v", err)
	}

	// The lane state of a lane that had more messages.
	w.swapTo(0, 15)
	if _, err := w.position(0); !errors.Is(err, flow.ErrGap) {
		t.Fatalf("got %v, want %v", err, flow.ErrGap)
	}
	// The lane grows past it: the same sequences are other messages, whatever the time between and
	// the clock of their timestamps.
	w.publish(p, "other", 10)
	for name, other := range map[string]time.Duration{"a moment": time.Nanosecond, "an hour": time.Hour} {
		for _, sign := range []time.Duration{-1, 1} {
			pos := w.swapTo(0, 15)
			pos.Stamp += int64(sign * other)
			if _, err := stream.NewLaneStates(w.Stream).CompareAndSwap(t.Context(), 0, pos); err != nil {
				t.Fatal(err)
			}
			if _, err := w.position(0); !errors.Is(err, flow.ErrGap) {
				t.Errorf("%s apart: got %v, want %v", name, err, flow.ErrGap)
			}
			w.reset(15)
		}
	}
}

// reset sets lane 0's resume point behind a message.
func (w *world) reset(done uint64) {
	w.t.Helper()
	if _, err := stream.NewLaneStates(w.Stream).Reset(w.t.Context(), 0, done, 0); err != nil {
		w.t.Fatal(err)
	}
}

// TestNoClockIsComparedWithAnother: a server's clock steps, or the next leader has another clock.
// Only the identity of the message counts.
func TestNoClockIsComparedWithAnother(t *testing.T) {
	w := open(t, stream.Config{})
	w.publish(w.publisher(), "id", 10)
	before := w.swapTo(0, 10)
	w.server.Restart()
	w.connected(t.Context())
	if after, err := w.position(0); err != nil || after.Stamp != before.Stamp || before.Stamp == 0 {
		t.Errorf("after a restart: got %+v, %v, want the stamp %d", after, err, before.Stamp)
	}
	// A claim is compared by its own last message.
	pos := before
	pos.Done, pos.Stamp, pos.Claim = 5, w.stamp(0, 5), &flow.Claim{First: 6, Last: 10, Stamp: w.stamp(0, 10), Hash: "h"}
	pos, err := stream.NewLaneStates(w.Stream).CompareAndSwap(t.Context(), 0, pos)
	fatal.If(t, err)
	if _, err := w.position(0); err != nil {
		t.Errorf("a claim of the messages that are there: %v", err)
	}
	pos.Claim.Stamp++
	if _, err := stream.NewLaneStates(w.Stream).CompareAndSwap(t.Context(), 0, pos); err != nil {
		t.Fatal(err)
	}
	if _, err := w.position(0); !errors.Is(err, flow.ErrGap) {
		t.Errorf("a claim of others: got %v, want %v", err, flow.ErrGap)
	}
}

func TestALaneMadeAgainHasAnotherIdentity(t *testing.T) {
	w := open(t, stream.Config{})
	w.publish(w.publisher(), "id", 10)
	before := w.swapTo(0, 10)
	w.recreate("FLOW_0")
	after, err := w.position(0)
	fatal.If(t, err)
	expect.Not(t, after.StreamID != before.StreamID, "the lane state names %s, written as %s", after.StreamID, before.StreamID)
	identity, err := stream.NewLaneStates(w.Stream).StreamID(t.Context(), 0)
	if err != nil || identity == before.StreamID {
		t.Errorf("the lane is %s, %v, and was %s", identity, err, before.StreamID)
	}

	// An operator resets it, and fences its owner.
	if _, err := stream.NewLaneStates(w.Stream).Reset(t.Context(), 0, 1, 0); err == nil {
		t.Error("it was reset to a message it does not have")
	}
	reset, err := stream.NewLaneStates(w.Stream).Reset(t.Context(), 0, 0, 0)
	want := flow.LaneState{Incarnations: []flow.Incarnation{{ID: reset.Incarnation(), First: 1}}, StreamID: identity, DedupFrom: 1, Reset: true, Revision: reset.Revision}
	if diff := cmp.Diff(want, reset); diff != "" || err != nil {
		t.Errorf("reset: %v (-want +got):\n%s", err, diff)
	}
	if now := uint64(time.Now().UnixMilli()); reset.Incarnation() > now || reset.Incarnation() < now-10_000 {
		t.Errorf("its incarnation is %d, want the time, %d", reset.Incarnation(), now)
	}
	if _, err := stream.NewLaneStates(w.Stream).CompareAndSwap(t.Context(), 0, before); !errors.Is(err, flow.ErrNotOwner) {
		t.Errorf("the owner from before: got %v, want %v", err, flow.ErrNotOwner)
	}
}

func TestTheFirstPositionOfALaneMayBeReset(t *testing.T) {
	w := open(t, stream.Config{})
	w.publish(w.publisher(), "id", 3)
	if _, err := stream.NewLaneStates(w.Stream).Reset(t.Context(), 0, 2, 0); err != nil {
		t.Fatal(err)
	}
	pos, err := w.position(0)
	if err != nil || pos.Done != 0 || pos.Base() != 2 { // unknown what was stored: all is read
		t.Errorf("got %+v, %v", pos, err)
	}
	ahead := uint64(time.Now().Add(time.Hour).UnixMilli()) // of a machine with a wrong clock
	again, err := stream.NewLaneStates(w.Stream).Reset(t.Context(), 0, 1, ahead)
	expect.Not(t, err != nil || again.Incarnation() != ahead+1, "above another incarnation: got %+v, %v, want %d", again, err, ahead+1)
	if again, err = stream.NewLaneStates(w.Stream).Reset(t.Context(), 0, 1, 0); err != nil || again.Incarnation() != ahead+2 {
		t.Errorf("above the incarnation before: got %+v, %v, want %d", again, err, ahead+2)
	}
	// A message keeps the incarnation in which it was appended; message 2, that of the first reset.
	if again.IncarnationOf(1) != 0 || again.IncarnationOf(2) != 0 || again.IncarnationOf(3) != ahead+2 || len(again.Incarnations) != 3 {
		t.Errorf("the incarnations are %+v", again.Incarnations)
	}
}

// TestAResetKeepsWhatTheCheckpointProves: messages up to the checkpoint, to the end of an open claim, or to the last one
// of an earlier reset keep their incarnation, whatever message the operator names: they may be stored. One of another
// message proves nothing.
func TestAResetKeepsWhatTheCheckpointProves(t *testing.T) {
	for name, tt := range map[string]struct {
		done, claimed, base uint64
		later               int64 // stamp of the last of them

		resumes, keeps uint64
	}{
		"a checkpoint":                        {4, 0, 0, 0, 4, 4},
		"a checkpoint of another message":     {4, 0, 0, 1, 2, 2},
		"a claim":                             {2, 4, 0, 0, 2, 4},
		"a claim of another message":          {2, 4, 0, 1, 2, 2},
		"an earlier reset":                    {1, 0, 4, 0, 1, 4},
		"an earlier reset of another message": {1, 0, 4, 1, 1, 2},
		"an earlier reset, and a claim":       {1, 3, 4, 0, 1, 4},
	} {
		t.Run(name, func(t *testing.T) {
			w := open(t, stream.Config{})
			w.publish(w.publisher(), "id", 5)
			states := stream.NewLaneStates(w.Stream)
			id, err := states.StreamID(t.Context(), 0)
			fatal.If(t, err)
			before := flow.LaneState{Incarnations: []flow.Incarnation{{ID: 1, First: 1}}, StreamID: id, Done: tt.done, Stamp: w.stamp(0, tt.done)}
			if tt.claimed > 0 {
				before.Claim = &flow.Claim{First: tt.done + 1, Last: tt.claimed, Stamp: w.stamp(0, tt.claimed) + tt.later, Hash: "h"}
			}
			switch {
			case tt.base > 0:
				before = before.WithIncarnation(2, tt.base+1)
				before.BaseStamp = w.stamp(0, tt.base) + tt.later
			case tt.claimed == 0:
				before.Stamp += tt.later
			}
			_, err = states.CompareAndSwap(t.Context(), 0, before)
			fatal.If(t, err)
			at, err := states.Reset(t.Context(), 0, 2, 0)
			fatal.If(t, err)
			if at.Done != tt.resumes || at.Claim != nil || at.Base() != tt.keeps || at.IncarnationOf(tt.keeps) != 1 || at.Incarnation() == 1 {
				t.Errorf("got %+v, want it to resume after message %d, and a new incarnation after %d", at, tt.resumes, tt.keeps)
			}
		})
	}
}

func TestAPositionThatDoesNotParseIsAnError(t *testing.T) {
	w := open(t, stream.Config{})
	kv, err := w.jetStream().KeyValue(stream.LaneBucket)
	fatal.If(t, err)
	if _, err := kv.Put("lane.0", []byte("{")); err != nil {
		t.Fatal(err)
	}
	if pos, err := w.position(0); err == nil {
		t.Errorf("got %+v, want an error", pos)
	}
	if _, err := kv.Put("lane.0", nil); err != nil {
		t.Fatal(err)
	}
	if pos, err := w.position(0); err == nil {
		t.Errorf("got %+v, want an error", pos)
	}
}
