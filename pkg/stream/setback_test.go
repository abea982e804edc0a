package stream_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// backup copies a lane by JetStream's own snapshot. setBack restores the copy as a restore does:
// with every sequence, time, and creation time in its name; no connection ends.
func (w *world) backup(lane int) (setBack func()) {
	w.t.Helper()
	js, name := w.jetStream(), stream.LaneName(lane)
	was, err := js.StreamInfo(name)
	fatal.If(w.t, err)
	chunks, err := w.nc.SubscribeSync(w.nc.NewInbox())
	fatal.If(w.t, err)
	var begun struct {
		State   json.RawMessage `json:"state"`
		Deliver string          `json:"deliver_subject"`
	}
	w.ask("$JS.API.STREAM.SNAPSHOT."+name, map[string]any{"deliver_subject": chunks.Subject, "no_consumers": true, "chunk_size": 64 << 10}, &begun)
	var copied [][]byte
	for {
		chunk, err := chunks.NextMsg(10 * time.Second)
		fatal.If(w.t, err)
		if len(chunk.Data) == 0 {
			break
		}
		copied = append(copied, chunk.Data)
		if chunk.Reply != "" {
			fatal.If(w.t, chunk.Respond(nil))
		}
	}
	return func() {
		w.t.Helper()
		fatal.If(w.t, js.DeleteStream(name))
		cfg := was.Config
		cfg.Metadata = map[string]string{
			stream.FormatKey: strconv.Itoa(flow.Format), stream.CreatedKey: strconv.FormatInt(was.Created.UnixNano(), 10),
		}
		w.ask("$JS.API.STREAM.RESTORE."+name, map[string]any{"config": cfg, "state": begun.State}, &begun)
		for _, chunk := range append(copied, nil) {
			if _, err := w.nc.Request(begun.Deliver, chunk, 10*time.Second); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

func (w *world) ask(subject string, request, answer any) {
	w.t.Helper()
	body, err := json.Marshal(request)
	fatal.If(w.t, err)
	msg, err := w.nc.Request(subject, body, 10*time.Second)
	fatal.If(w.t, err)
	var failed struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := errors.Join(json.Unmarshal(msg.Data, &failed), json.Unmarshal(msg.Data, answer)); err != nil || failed.Error != nil {
		w.t.Fatalf("%s: %v, %v", subject, err, failed.Error)
	}
}

// message is a message of a lane.
func (w *world) message(lane int, seq uint64) *nats.RawStreamMsg {
	w.t.Helper()
	msg, err := w.jetStream().GetMsg(stream.LaneName(lane), seq)
	fatal.If(w.t, err)
	return msg
}

// resend publishes until the answer is OK, as a client does.
func (w *world) resend(p *stream.Publisher, sub *flow.Submission) flow.Receipt {
	w.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		receipt, err := p.Publish(w.t.Context(), sub)
		if err == nil {
			return receipt
		}
		if !errors.Is(err, flow.ErrUnavailable) || time.Now().After(deadline) {
			w.t.Fatalf("publish %s: %v", sub.ID, err)
		}
	}
}

// counted maps the requests of a lane's entries that count to the number of these entries.
func (w *world) counted(lane int) map[string]int {
	w.t.Helper()
	n := map[string]int{}
	for _, e := range w.entries(lane) {
		for _, m := range e.Messages {
			if e.LogEnd < e.Seq {
				n[m.ID]++
			}
		}
	}
	return n
}

// TestARepeatOfWhatALaneHasLostIsSent: a lane is set back to a backup while an api runs. Clients
// resend later requests. Every OK means that the lane holds the request, whether or not another
// api has filled the lane beyond its former end.
func TestARepeatOfWhatALaneHasLostIsSent(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]int{"and nothing came since": 0, "and filled beyond its former end": 8} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := open(t, stream.Config{})
			p, other := w.publisher(), openOn(t, w.server, stream.Config{}).publisher()
			w.publish(p, "kept", 2)
			setBack := w.backup(0)
			lost := []*flow.Submission{submission("one", 10), submission("large", 400<<10, 300<<10), submission("reused", 10)}
			for _, sub := range lost {
				if _, err := p.Publish(t.Context(), sub); err != nil {
					t.Fatal(err)
				}
			}
			if len(w.entries(0)) != 6 {
				t.Fatalf("%d entries, want 6", len(w.entries(0)))
			}
			setBack()
			for i := range more {
				w.resend(other, submission(fmt.Sprint("other-", i), 10))
			}
			lost[2] = submission("reused", 20)
			lost[2].Hash = "of another body" // nothing with its key exists
			for _, sub := range lost {
				if got := w.resend(p, sub); got.Replayed {
					t.Errorf("%s is reported as present", sub.ID)
				}
				if got := w.counted(0)[sub.ID]; got != len(chunksOf(sub)) {
					t.Errorf("%s was answered OK, and %d of its %d chunks are in the lane", sub.ID, got, len(chunksOf(sub)))
				}
				if got, err := p.Publish(t.Context(), sub); err != nil || !got.Replayed {
					t.Errorf("%s, again: got %+v, %v, want replayed", sub.ID, got, err)
				}
			}
			if got, err := p.Publish(t.Context(), submission("kept-0", 10)); err != nil || w.counted(0)["kept-0"] != 1 {
				t.Errorf("what the backup had: got %+v, %v, and the lane has it %d times", got, err, w.counted(0)["kept-0"])
			}
			if _, err := p.Publish(t.Context(), submission("reused", 10)); !errors.Is(err, flow.ErrKeyReused) {
				t.Errorf("the key with its former body: got %v, want %v", err, flow.ErrKeyReused)
			}
		})
	}
}

// TestARepeatNeedsEveryLane: a request has two lanes, and one was set back.
func TestARepeatNeedsEveryLane(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{MaxBytes: 16 << 20})
	w.addLane()
	p := w.publisher()
	request := func(id string) *flow.Submission {
		sub := submission(id, 10, 10)
		chunksOf(sub)[1].Lane = 1
		return sub
	}
	if _, err := p.Publish(t.Context(), request("before")); err != nil {
		t.Fatal(err)
	}
	setBack := w.backup(1)
	if _, err := p.Publish(t.Context(), request("one")); err != nil {
		t.Fatal(err)
	}
	setBack()
	if got := w.resend(p, request("one")); got.Replayed || w.counted(1)["one"] != 1 {
		t.Errorf("got %+v, and lane 1 has it %d times", got, w.counted(1)["one"])
	}
	if got := w.resend(p, request("before")); !got.Replayed {
		t.Errorf("what both lanes have: got %+v, want replayed", got)
	}
}

// TestALaneIsSetBackUnderAnEntry that is queued, or was sent and not answered.
func TestALaneIsSetBackUnderAnEntry(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]int{"and nothing came since": 0, "and filled beyond its former end": 8} {
		t.Run("queued, "+name, func(t *testing.T) {
			t.Parallel()
			w := open(t, stream.Config{})
			p, other := w.publisher(), openOn(t, w.server, stream.Config{}).publisher()
			w.publish(p, "kept", 2)
			setBack := w.backup(0)
			w.publish(p, "lost", 2)
			queued, release := p.Hold()
			answer := make(chan error, 1)
			go func() { _, err := p.Publish(t.Context(), submission("one", 10)); answer <- err }()
			for queued() == 0 {
				time.Sleep(time.Millisecond)
			}
			setBack()
			for i := range more {
				w.resend(other, submission(fmt.Sprint("other-", i), 10))
			}
			release()
			if err := <-answer; (err == nil) != (w.counted(0)["one"] == 1) {
				t.Errorf("got %v, and the lane has it %d times where it counts", err, w.counted(0)["one"])
			}
			if w.resend(p, submission("one", 10)); w.counted(0)["one"] != 1 {
				t.Errorf("answered OK, and the lane has it %d times", w.counted(0)["one"])
			}
		})
		t.Run("in flight, "+name, func(t *testing.T) {
			t.Parallel()
			w := open(t, stream.Config{})
			p, other := w.publisher(), openOn(t, w.server, stream.Config{}).publisher()
			w.publish(p, "kept", 2)
			setBack := w.backup(0)
			w.publish(p, "lost", 2)
			_, err := p.SendTwice(t.Context(), submission("one", 10), func() {
				setBack()
				for i := range more {
					w.resend(other, submission(fmt.Sprint("other-", i), 10))
				}
			})
			if got := w.counted(0)["one"]; (err == nil) != (got == 1) {
				t.Errorf("its second attempt: got %v, and the lane has it %d times where it counts", err, got)
			}
		})
	}
}

// TestTheWindowOfJetStreamDoesNotAnswerForADeletedMessage: the server remembers ids for two minutes,
// also of removed messages.
func TestTheWindowOfJetStreamDoesNotAnswerForADeletedMessage(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	p := w.publisher()
	w.publish(p, "known", 2)
	first, second := p.SendTwice(t.Context(), submission("one", 10), func() {})
	if first != nil || second != nil || w.counted(0)["one"] != 1 {
		t.Errorf("of a message that is there: got %v and %v, and the lane has it %d times", first, second, w.counted(0)["one"])
	}
	first, second = p.SendTwice(t.Context(), submission("two", 10), func() {
		fatal.If(t, w.jetStream().PurgeStream("FLOW_0"))
	})
	expect.Not(t, first != nil || !errors.Is(second, flow.ErrUnavailable), "got %v and %v, want %v the second time", first, second, flow.ErrUnavailable)
	if got := w.resend(w.publisher(), submission("two", 10)); got.Replayed || w.counted(0)["two"] != 1 {
		t.Errorf("sent again: got %+v, and the lane has it %d times", got, w.counted(0)["two"])
	}
}

// TestARepeatWhileNATSIsAwayIsNotAnswered: nothing proves that it is stored.
func TestARepeatWhileNATSIsAwayIsNotAnswered(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	p := w.publisher()
	if _, err := p.Publish(t.Context(), submission("one", 10)); err != nil {
		t.Fatal(err)
	}
	w.server.Stop()
	for _, hash := range []string{"hash of one", "of another body"} {
		sub, begun := submission("one", 10), time.Now()
		sub.Hash = hash
		if _, err := p.Publish(t.Context(), sub); !errors.Is(err, flow.ErrUnavailable) {
			t.Errorf("got %v, want %v", err, flow.ErrUnavailable)
		}
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("it took %v, want at most 2s", took)
		}
	}
	w.server.Restart()
	if got := w.resend(p, submission("one", 10)); !got.Replayed {
		t.Errorf("once it is back: got %+v, want replayed", got)
	}
}

// TestAReaderNoticesThatItsLaneWasSetBack: during reading, a lane is set back to a backup and
// filled beyond its former end. The later messages were never read.
func TestAReaderNoticesThatItsLaneWasSetBack(t *testing.T) {
	t.Parallel()
	w := open(t, stream.Config{})
	p, other := w.publisher(), openOn(t, w.server, stream.Config{}).publisher()
	w.publish(p, "kept", 2)
	setBack := w.backup(0)
	w.publish(p, "lost", 2)
	r, err := w.OpenLane(t.Context(), 0, 1, 0)
	fatal.If(t, err)
	defer r.Close()
	for seq := uint64(1); seq <= 4; seq++ {
		if e, err := r.Next(t.Context()); err != nil || e.Seq != seq {
			t.Fatalf("got message %d, %v, want %d", e.Seq, err, seq)
		}
	}
	setBack()
	for i := range 4 {
		w.resend(other, submission(fmt.Sprint("other-", i), 10))
	}
	if e, err := r.Next(t.Context()); !errors.Is(err, flow.ErrGap) {
		t.Errorf("got message %d, %v, want %v: messages 3 and 4 are others by now", e.Seq, err, flow.ErrGap)
	}
}
