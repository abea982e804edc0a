package stream_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats.go"

	"sluice/pkg/change"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

func TestAReplayIsThereOnce(t *testing.T) {
	t.Parallel()
	const window = 500 * time.Millisecond // shorter than any replay: the lanes are searched
	for name, c := range map[string]struct {
		window    time.Duration
		interrupt func(w *world, d stream.DeadLetter, p *stream.Publisher)
	}{
		"undisturbed": {0, func(*world, stream.DeadLetter, *stream.Publisher) {}},
		"the note was written, and no more": {0, func(w *world, d stream.DeadLetter, _ *stream.Publisher) {
			w.note(d)
		}},
		"it was published, and no more": {0, func(w *world, d stream.DeadLetter, p *stream.Publisher) {
			w.replayed(d, p)
		}},
		"the note was written long ago": {window, func(w *world, d stream.DeadLetter, _ *stream.Publisher) {
			w.note(d)
			time.Sleep(2 * window)
		}},
		// As after a step of the server's clock: the age of the note by another clock is
		// meaningless.
		"it was published, and the lane dropped the id too early": {window, func(w *world, d stream.DeadLetter, p *stream.Publisher) {
			w.replayed(d, p)
			time.Sleep(3 * window)
			w.setWindow(time.Hour)
		}},
		"it was published long ago": {window, func(w *world, d stream.DeadLetter, p *stream.Publisher) {
			w.replayed(d, p)
			time.Sleep(2 * window)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := open(t, stream.Config{RepeatWindow: 2 * c.window})
			p := w.publisher()
			letters := stream.NewDeadLetters(w.Stream)
			w.publish(p, "other", 3)
			fatal.If(t, letters.Publish(t.Context(), dead(2)))
			d := w.list(stream.DeadFilter{})[0]
			c.interrupt(w, d, p)
			w.publish(p, "more", 3)
			if _, err := letters.Replay(t.Context(), p, w.list(stream.DeadFilter{})[0]); err != nil {
				t.Fatal(err)
			}
			var got []flow.Message
			for _, m := range w.all(0) {
				if m.Subject == "engine-a" && m.TraceParent == "00-a-b-01" {
					got = append(got, m)
				}
			}
			fatal.When(t, len(got) != 1, "the record is there %d times, want once", len(got))
			body, err := s2.Decode(nil, got[0].Body)
			if err != nil || string(body) != `[{"id":"r"}]` || got[0].Records != 1 || !got[0].Received.Equal(d.Message.Received) {
				t.Errorf("replayed as %s, %v: %+v", body, err, got[0])
			}
			if left := w.list(stream.DeadFilter{}); len(left) != 0 {
				t.Errorf("%d letters are left, want none", len(left))
			}
			expect.Equal(t, "outcomes", []stream.Resolution{{Seq: 2, Index: 3, Outcome: stream.OutcomeReplayed}}, w.outcomes())
			if info, err := w.jetStream().StreamInfo("FLOW_NOTES"); err != nil || info.State.Msgs != 1 {
				t.Errorf("%d messages are left in FLOW_NOTES, %v, want the note of the outcome", info.State.Msgs, err)
			}
		})
	}
}

// setWindow sets the duplicate window of lane 0.
func (w *world) setWindow(window time.Duration) {
	w.t.Helper()
	js := w.jetStream()
	info, err := js.StreamInfo("FLOW_0")
	fatal.If(w.t, err)
	info.Config.Duplicates = window
	if _, err := js.UpdateStream(&info.Config); err != nil {
		w.t.Fatal(err)
	}
	fatal.If(w.t, w.Refresh(w.t.Context()))
}

// note leaves the traces of a replay interrupted right after its start.
func (w *world) note(d stream.DeadLetter) {
	w.t.Helper()
	if _, err := w.jetStream().Publish(stream.ReplayPrefix+stream.Origin(d), nil); err != nil {
		w.t.Fatal(err)
	}
}

// replayed leaves the traces of a replay interrupted after its publish.
func (w *world) replayed(d stream.DeadLetter, p *stream.Publisher) {
	w.t.Helper()
	kept := d
	if _, err := stream.NewDeadLetters(w.Stream).Replay(context.Background(), p, d); err != nil {
		w.t.Fatal(err)
	}
	fatal.If(w.t, w.jetStream().PurgeStream("FLOW_NOTES", &nats.StreamPurgeRequest{Subject: stream.SettledPrefix + stream.Origin(d)}))
	w.note(kept)
	fatal.If(w.t, stream.NewDeadLetters(w.Stream).Publish(context.Background(), kept.Dead))
}

func TestAReplayIsNotRepeatedIfTheLookupFails(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{RepeatWindow: 400 * time.Millisecond})
	p := w.publisher()
	letters := stream.NewDeadLetters(w.Stream)
	w.publish(p, "old", 5)
	fatal.If(t, letters.Publish(t.Context(), dead(2)))
	d := w.list(stream.DeadFilter{})[0]
	w.note(d)
	fatal.If(t, w.jetStream().PurgeStream("FLOW_0"))
	if _, err := letters.Replay(t.Context(), p, d); !errors.Is(err, stream.ErrHistoryPurged) {
		t.Errorf("got %v, want %v", err, stream.ErrHistoryPurged)
	}
}

func TestADeadChangeIsReplayedAsAChange(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	letters := stream.NewDeadLetters(w.Stream)
	c := change.Change{Kind: change.FieldDeleted, Target: change.Target{Table: "t", Field: "f"}, By: "me", At: time.Now().UTC(), ID: "change-1"}
	body, err := c.Encode()
	fatal.If(t, err)
	d := dead(4)
	d.Index, d.Message.Topic, d.Message.Body = -1, stream.ChangePrefix+c.Target.Key(), body
	fatal.If(t, letters.Publish(t.Context(), d))
	if _, err := letters.Replay(t.Context(), p, w.list(stream.DeadFilter{})[0]); err != nil {
		t.Fatal(err)
	}
	got := w.all(0)
	fatal.When(t, len(got) != 1 || got[0].Topic != d.Message.Topic, "got %+v, want the change", got)
	have, err := change.Decode(got[0].Body)
	if c.ID = got[0].ID; err != nil || c.ID == "change-1" || !cmp.Equal(c, have) { // the same change, published now
		t.Errorf("got %+v, %v, want %+v", have, err, c)
	}

	// A letter that is not a change cannot be replayed, and stays.
	d.Message.Seq, d.Message.Body = 5, []byte("{}")
	fatal.If(t, letters.Publish(t.Context(), d))
	var bad *change.BadChangeError
	if _, err := letters.Replay(t.Context(), p, w.list(stream.DeadFilter{})[0]); !errors.As(err, &bad) {
		t.Errorf("got %v, want a BadChangeError", err)
	}
	expect.Equal(t, "letters are left", 1, len(w.list(stream.DeadFilter{})))
}

// TestAReplayGoesToTheLanesOfItsSource: the source has two by now, and starts at the second.
func TestAReplayGoesToTheLanesOfItsSource(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 16 << 20})
	p := w.publisher()
	w.addLane()
	w.setSource(stream.Source{Name: "cluster-a", Lanes: []int{1, 0}})
	w.sources()
	of := func(partition int) string {
		return fmt.Sprintf(`{"partitionId":%d,"position":1,"timestamp":1700000000000}`, partition)
	}
	one, broken, several := dead(2), dead(3), dead(4)
	one.Message.Body = fmt.Appendf(nil, "%s", of(2))
	broken.Index, broken.Message.Body = -1, fmt.Appendf(nil, "[%s,", of(2))
	several.Index, several.Message.Body = -1, fmt.Appendf(nil, "[%s,%s,%s]", of(1), of(2), of(3))
	w.publishDead(one, broken, several)
	letters := stream.NewDeadLetters(w.Stream)
	for _, d := range w.list(stream.DeadFilter{}) {
		if _, err := letters.Replay(t.Context(), p, d); err != nil {
			t.Fatal(err)
		}
	}
	got := map[int][]string{}
	for lane := range 2 {
		for _, m := range w.all(lane) {
			body := m.Body
			if m.Encoding == flow.EncodingS2 {
				var err error
				if body, err = s2.Decode(nil, body); err != nil {
					t.Fatal(err)
				}
			}
			if got[lane] = append(got[lane], string(body)); m.Source != "cluster-a" {
				t.Errorf("%s is of source %q", body, m.Source)
			}
		}
	}
	want := map[string]int{
		"[" + of(2) + "]":               1, // even partitions go to the first of its lanes
		"[" + of(2) + ",":               1, // undecodable records too
		"[" + of(1) + "," + of(3) + "]": 0,
	}
	for lane, bodies := range got {
		for _, body := range bodies {
			if at, ok := want[body]; ok && at != lane {
				t.Errorf("%s is in lane %d, want %d", body, lane, at)
			}
			delete(want, body)
		}
	}
	if n := len(got[0]) + len(got[1]); n != 4 || len(want) > 0 {
		t.Errorf("the lanes hold %v, missing %v", got, want)
	}
}

// TestALetterThatWasSettledStaysSo: its message is read again, after a crash behind the letter or
// from a restored checkpoint older than the notes. The record would be stored twice, or return
// after it was dropped.
func TestALetterThatWasSettledStaysSo(t *testing.T) {
	w := open(t, stream.Config{})
	p := w.publisher()
	letters := stream.NewDeadLetters(w.Stream)
	w.publish(p, "other", 3)
	for name, settle := range map[string]func(d stream.DeadLetter) error{
		"replayed": func(d stream.DeadLetter) error { _, err := letters.Replay(t.Context(), p, d); return err },
		"dropped":  func(d stream.DeadLetter) error { return letters.Drop(t.Context(), d) },
	} {
		t.Run(name, func(t *testing.T) {
			d := dead(2)
			d.Index = len(name)
			fatal.If(t, letters.Publish(t.Context(), d))
			fatal.If(t, settle(w.list(stream.DeadFilter{})[0]))
			fatal.If(t, letters.Publish(t.Context(), d))
			if left := w.list(stream.DeadFilter{}); len(left) != 0 {
				t.Errorf("the letter is back: %+v", left)
			}
		})
	}
	// A letter that never was in a lane is identified by its bytes, which may be resent.
	for range 2 {
		d := dead(2)
		d.Message.Topic = ""
		fatal.If(t, letters.Publish(t.Context(), d))
		all := w.list(stream.DeadFilter{})
		fatal.When(t, len(all) != 1, "%d letters of no lane, want 1", len(all))
		fatal.If(t, letters.Drop(t.Context(), all[0]))
	}
}
