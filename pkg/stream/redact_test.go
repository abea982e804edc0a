package stream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// publishRecords publishes a message of two records in each of n requests.
func (w *world) publishRecords(n int) {
	w.t.Helper()
	p := w.publisher()
	for i := range n {
		sub := &flow.Submission{
			ID: fmt.Sprintf("request-%d", i), Hash: fmt.Sprintf("hash-%d", i), Subject: "engine-a", Source: "cluster-a", Received: time.UnixMilli(1_763_700_000_000 + int64(i)).UTC(),
			Pieces: []flow.Piece{{Body: fmt.Appendf(nil, `[{"id":"secret-%d"},{"id":"other-%d"}]`, i, i), Records: 2}},
		}
		if _, err := p.Publish(w.t.Context(), sub); err != nil {
			w.t.Fatal(err)
		}
	}
}

// read reads n messages of lane 0 from one on.
func (w *world) read(from uint64, n int) (all []flow.Entry) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	c, err := w.OpenLane(ctx, 0, from, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	for range n {
		e, err := c.Next(ctx)
		if err != nil {
			w.t.Fatalf("after %d messages: %v", len(all), err)
		}
		all = append(all, e)
	}
	return all
}

// firstOf takes the first record out of a message.
func firstOf(receipt string) stream.Redaction {
	return stream.Redaction{
		Receipt: receipt, Records: 1, Forgotten: flow.Forgotten{Stored: []int{0}},
		Forget: func(_ *flow.Message, index int) bool { return index == 0 },
	}
}

// TestRedactedMessages: readers get what is left in the place of what was
// deleted, with the times, the requests and the places that it had; the first
// message and the last one too, and while they are being deleted.
func TestRedactedMessages(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	const n = 8
	w.publishRecords(n)
	before := w.read(1, n)
	waiting, err := w.OpenLane(t.Context(), 0, n, 0) // reads the last one only after it is gone
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	if err := w.CanRedact(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	for _, seq := range []int{1, 4, 5, n} {
		if err := w.Redact(t.Context(), &before[seq-1], firstOf("r1")); err != nil {
			t.Fatal(err)
		}
		if _, err := w.jetStream().GetMsg("FLOW_0", uint64(seq)); err == nil {
			t.Errorf("the lane has message %d still", seq)
		}
	}
	want := slices.Clone(before)
	for _, seq := range []int{1, 4, 5, n} {
		e := &want[seq-1]
		e.Messages = slices.Clone(e.Messages)
		e.Body = fmt.Appendf(nil, `[null,{"id":"other-%d"}]`, seq-1)
		e.Messages[0].Body = e.Body
		e.Forgotten.Stored = []int{0}
		e.Table = nil
	}
	same := func(what string, want, got []flow.Entry) {
		t.Helper()
		for i := range min(len(want), len(got)) {
			if want[i].Table == nil { // written anew: the length of its body is another
				got[i].Table = nil
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	same("all", want, w.read(1, n))
	same("from the middle on", want[4:], w.read(5, n-4))
	if e, err := waiting.Next(t.Context()); err != nil {
		t.Error(err)
	} else {
		same("the last one", want[n-1:], []flow.Entry{e})
	}
	for _, part := range [][2]uint64{{1, n}, {2, 6}, {4, 5}, {4, 4}, {n, n}} {
		var got, heads []string
		for _, e := range want[part[0]-1 : part[1]] {
			heads = append(heads, fmt.Sprint(e.Seq, e.Stored, e.Messages[0].ID, e.Messages[0].Records))
		}
		err := w.Heads(t.Context(), 0, part[0], part[1], func(e *flow.Entry) error {
			got = append(got, fmt.Sprint(e.Seq, e.Stored, e.Messages[0].ID, e.Messages[0].Records))
			return nil
		})
		if diff := cmp.Diff(heads, got); err != nil || diff != "" {
			t.Errorf("headers of %d to %d, %v (-want +got):\n%s", part[0], part[1], err, diff)
		}
	}

	// Once more from the same message, interrupted before anything was deleted.
	e := w.read(4, 1)[0]
	second := stream.Redaction{Receipt: "r2", Records: 1, Forgotten: flow.Forgotten{Repeated: []int{1}}, Forget: func(_ *flow.Message, index int) bool { return index == 1 }}
	if err := w.Redact(t.Context(), &e, second); err != nil {
		t.Fatal(err)
	}
	want[3].Body, want[3].Forgotten.Repeated = []byte(`[null,null]`), []int{1}
	want[3].Messages[0].Body = want[3].Body
	same("redacted twice", want, w.read(1, n))
	if info, err := w.jetStream().StreamInfo(stream.RedactedStream); err != nil || info.State.Msgs != 4 {
		t.Errorf("%d messages are kept, %v, want one for each", info.State.Msgs, err)
	}
	for receipt, want := range map[string][2]int{"r1": {4, 4}, "r2": {1, 1}, "r3": {}} {
		messages, records, err := w.Redacted(t.Context(), receipt)
		if got := [2]int{messages, records}; err != nil || got != want {
			t.Errorf("%s: messages and records are %v, %v, want %v", receipt, got, err, want)
		}
	}
}

// TestAnInterruptedRedactionIsFinished: what was kept, and not deleted yet.
func TestAnInterruptedRedactionIsFinished(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	w.publishRecords(3)
	all := w.read(1, 3)
	if err := w.Redact(t.Context(), &all[0], firstOf("r1")); err != nil {
		t.Fatal(err)
	}
	// The same for message 2, and no more.
	kept, err := w.jetStream().GetMsg(stream.RedactedStream, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.jetStream().PublishMsg(&nats.Msg{Subject: kept.Subject[:len(kept.Subject)-1] + "2", Header: kept.Header, Data: kept.Data}); err != nil {
		t.Fatal(err)
	}
	before := w.read(1, 3)
	if before[1].Forgotten.Stored == nil || before[2].Forgotten.Stored != nil {
		t.Errorf("got %+v", before)
	}
	for range 2 {
		if err := w.FinishRedactions(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.jetStream().GetMsg("FLOW_0", 2); err == nil {
		t.Error("the lane has message 2 still")
	}
	if diff := cmp.Diff(before, w.read(1, 3)); diff != "" {
		t.Errorf("afterwards (-want +got):\n%s", diff)
	}
}

// TestPurgedRedactions: what is left of a message goes when the lane would have
// purged it.
func TestPurgedRedactions(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{DuplicateWindow: 100 * time.Millisecond})
	w.publishRecords(6)
	for _, e := range w.read(1, 6) {
		if e.Seq == 2 || e.Seq == 5 {
			if err := w.Redact(t.Context(), &e, firstOf("r1")); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.swapTo(0, 4)
	purger := stream.NewPurger(w.Stream, stream.PurgeConfig{History: time.Nanosecond})
	purger.SetMargin(0)
	for {
		if err := purger.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		info, err := w.jetStream().StreamInfo(stream.RedactedStream)
		if err != nil {
			t.Fatal(err)
		}
		if info.State.Msgs == 1 {
			break
		}
	}
	if got := w.read(5, 2); got[0].Forgotten.Stored == nil || got[1].Forgotten.Stored != nil {
		t.Errorf("got %+v", got)
	}
	if _, err := w.OpenLane(t.Context(), 0, 2, 0); !errors.Is(err, flow.ErrGap) {
		t.Errorf("a purged message: got %v, want %v", err, flow.ErrGap)
	}
}

// TestAWholeLaneIsReadWithoutItsRedactions: the servers of that stream may be away
// while those of the lane are not. Where messages are missing they are needed.
func TestAWholeLaneIsReadWithoutItsRedactions(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	w.publish(w.publisher(), "id", 3)
	js := w.jetStream()
	if err := js.DeleteStream(stream.RedactedStream); err != nil {
		t.Fatal(err)
	}
	c, err := w.OpenLane(t.Context(), 0, 1, 0)
	if err != nil {
		t.Fatalf("a lane that is whole: %v", err)
	}
	c.Close()
	if err := js.DeleteMsg("FLOW_0", 2); err != nil {
		t.Fatal(err)
	}
	if _, err := w.OpenLane(t.Context(), 0, 1, 0); !errors.Is(err, flow.ErrUnavailable) {
		t.Errorf("a lane that lacks a message: got %v, want %v", err, flow.ErrUnavailable)
	}
}
