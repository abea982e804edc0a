package simulate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/cmd/internal/simulate"
	"sluice/pkg/broker"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// behaviours are the behaviours of NATS on which Sluice relies. Each row must give the
// same answer with the simulated server and with a real one.
var behaviours = []struct {
	name string
	do   func(*site) string
	want string
}{
	{"messages are numbered from 1", func(s *site) string { return s.publish("a.x", "") + s.publish("a.y", "") }, "1 2 "},
	{"a message with a known id is not stored twice", func(s *site) string {
		return s.publish("a.x", "one") + s.publish("a.x", "one") + s.publish("a.x", "two")
	}, "1 1(duplicate) 2 "},
	{"the expected last sequence is per subject", func(s *site) string {
		return s.publish("a.x", "") + s.publish("a.y", "") + s.expect("a.x", 1) + s.expect("a.x", 1) + s.expect("a.z", 0)
	}, "1 2 3 10071 4 "},
	{"the sequence is checked before the id", func(s *site) string {
		return s.send("a.x", nats.Header{"Nats-Msg-Id": {"one"}, "Nats-Expected-Last-Subject-Sequence": {"0"}}) +
			s.send("a.x", nats.Header{"Nats-Msg-Id": {"one"}, "Nats-Expected-Last-Subject-Sequence": {"0"}})
	}, "1 10071 "},
	{"a subject without a stream has no responder", func(s *site) string { return s.publish("z.x", "") }, "no responders "},
	{"a full stream rejects messages", func(s *site) string {
		s.create(jetstream.StreamConfig{Name: "F", Subjects: []string{"f.>"}, Discard: jetstream.DiscardNew, MaxBytes: 200})
		all := s.publish("f.x", "")
		for range 5 {
			all = s.publish("f.x", "")
		}
		return all
	}, "10077 maximum bytes "},
	{"one message of a subject: the next one replaces it", func(s *site) string {
		s.create(jetstream.StreamConfig{Name: "K", Subjects: []string{"k.>"}, Discard: jetstream.DiscardNew, MaxMsgsPerSubject: 1})
		return s.publish("k.x", "") + s.publish("k.y", "") + s.publish("k.x", "") + s.get("K", 1, "") + s.state("K")
	}, "1 2 3 none 2-3: 2 "},
	{"one message of a subject and no other", func(s *site) string {
		s.create(jetstream.StreamConfig{Name: "D", Subjects: []string{"d.>"}, Discard: jetstream.DiscardNew, MaxMsgsPerSubject: 1, DiscardNewPerSubject: true})
		return s.publish("d.x", "") + s.publish("d.x", "") + s.publish("d.y", "")
	}, "1 10077 per subject 2 "},
	{"a purge keeps sequences", func(s *site) string {
		for range 5 {
			s.publish("a.x", "")
		}
		return s.purge("A", "", 4) + s.state("A") + s.get("A", 3, "") + s.get("A", 4, "") + s.purge("A", "", 0) + s.state("A") + s.publish("a.x", "")
	}, "4-5: 2 none 4 6-5: 0 6 "},
	{"a subject is purged up to a sequence", func(s *site) string {
		return s.publish("a.x", "") + s.publish("a.y", "") + s.publish("a.x", "") + s.purge("A", "a.x", 2) + s.state("A")
	}, "1 2 3 2-3: 2 "},
	{"the id of a purged message is kept until the window ends", func(s *site) string {
		return s.publish("a.x", "one") + s.purge("A", "", 2) + s.publish("a.x", "one")
	}, "1 1(duplicate) "},
	{"a deleted message leaves a hole", func(s *site) string {
		return s.publish("a.x", "") + s.publish("a.x", "") + s.publish("a.x", "") + s.delete("A", 2) + s.get("A", 2, "") + s.state("A")
	}, "1 2 3 none 1-3: 2 "},
	{"the first message of a subject from a sequence on", func(s *site) string {
		return s.publish("a.x", "") + s.publish("a.y", "") + s.publish("a.x", "") + s.get("A", 2, "a.x") + s.get("A", 1, "a.*") + s.get("A", 4, "a.x")
	}, "1 2 3 3 1 none "},
	{"the last message of a subject", func(s *site) string {
		return s.publish("a.x", "") + s.publish("a.y", "") + s.publish("a.x", "") + s.last("A", "a.x") + s.last("A", "a.q")
	}, "1 2 3 3 none "},
	{"a missing stream", func(s *site) string { return s.state("NONE") }, "not found "},
	{"streams that have a subject", func(s *site) string {
		names, err := s.Names(s.ctx, "*.x")
		slices.Sort(names)
		return fmt.Sprint(names, err)
	}, "[A] <nil>"},
	{"reading begins at the first remaining message", func(s *site) string {
		for range 4 {
			s.publish("a.x", "")
		}
		return s.purge("A", "", 3) + s.read("A", broker.From{Seq: 1}, 2)
	}, "behind 2, 2 pending: 3/1/1 4/2/0 "},
	{"reading one subject", func(s *site) string {
		s.publish("a.x", "")
		s.publish("a.y", "")
		s.publish("a.x", "")
		return s.read("A", broker.From{Seq: 1, Subject: "a.x"}, 2)
	}, "behind 0, 2 pending: 1/1/1 3/2/0 "},
	{"reading the last message of each subject", func(s *site) string {
		s.publish("a.x", "")
		s.publish("a.y", "")
		s.publish("a.x", "")
		return strings.SplitN(s.read("A", broker.From{Last: true}, 2), ", ", 2)[1]
	}, "2 pending: 2/1/1 3/2/0 "},
	{"reading waits for new messages", func(s *site) string {
		r, err := s.Read(s.ctx, "A", broker.From{Seq: 1})
		if err != nil {
			return err.Error()
		}
		defer r.Stop()
		limited, cancel := context.WithTimeout(s.ctx, 300*time.Millisecond)
		defer cancel()
		_, none := r.Next(limited)
		s.publish("a.x", "")
		m, err := r.Next(s.ctx)
		return fmt.Sprint(errors.Is(none, context.DeadlineExceeded), m.Seq, err)
	}, "true 1 <nil>"},
	{"a reading that was stopped ends", func(s *site) string {
		r, err := s.Read(s.ctx, "A", broker.From{Seq: 1})
		if err != nil {
			return err.Error()
		}
		r.Stop()
		_, err = r.Next(s.ctx)
		return fmt.Sprint(errors.Is(err, jetstream.ErrMsgIteratorClosed))
	}, "true"},
	{"an entry of a bucket is created once, and again after it was deleted", func(s *site) string {
		kv := s.bucket()
		first, err1 := kv.Create(s.ctx, "k", []byte("1"))
		_, err2 := kv.Create(s.ctx, "k", []byte("2"))
		err3 := kv.Delete(s.ctx, "k", first)
		third, err4 := kv.Create(s.ctx, "k", []byte("3"))
		return fmt.Sprint(first, err1, errors.Is(err2, jetstream.ErrKeyExists), err3, third, err4)
	}, "1 <nil> true <nil> 3 <nil>"},
	{"compare-and-swap of an entry", func(s *site) string {
		kv := s.bucket()
		first, _ := kv.Create(s.ctx, "k", []byte("1"))
		second, err1 := kv.Update(s.ctx, "k", []byte("2"), first)
		_, err2 := kv.Update(s.ctx, "k", []byte("3"), first)
		e, err3 := kv.Get(s.ctx, "k")
		if err3 != nil {
			return err3.Error()
		}
		return fmt.Sprint(second, err1, errors.Is(err2, jetstream.ErrKeyRevisionMismatch), string(e.Value()), e.Revision())
	}, "2 <nil> true22"},
	{"a watch returns entries, nil, and changes", func(s *site) string {
		kv := s.bucket()
		_, _ = kv.Put(s.ctx, "k", []byte("1"))
		w, err := kv.Watch(s.ctx, ">", true)
		if err != nil {
			return err.Error()
		}
		defer w.Stop() // the test ends the connection
		text := ""
		for range 3 {
			e := <-w.Updates()
			if e == nil {
				text += "nil "
				_ = kv.Delete(s.ctx, "k", 0)
				continue
			}
			text += fmt.Sprint(e.Key(), " ", e.Revision(), " ", e.Operation(), " ")
		}
		return text
	}, "k 1 KeyValuePutOp nil k 2 KeyValueDeleteOp "},
}

// TestBehavioursOfTheSimulatedServer and the next test compare the simulation with a real
// server.
func TestBehavioursOfTheSimulatedServer(t *testing.T) {
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) {
			var got string
			synctest.Test(t, func(*testing.T) {
				simulate.Serve(synctest.Wait, func(js broker.Broker) { got = perform(js, b.do) })
			})
			expect.Not(t, got != b.want, "got %q, want %q", got, b.want)
		})
	}
}

func TestBehavioursOfNATS(t *testing.T) {
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			js, err := broker.OverNATS(natstest.Start(t).Connect())
			fatal.If(t, err)
			expect.Equal(t, "result", b.want, perform(js, b.do))
		})
	}
}

// site is a server with a stream A of subjects a.>.
type site struct {
	broker.Broker
	ctx context.Context
}

func perform(js broker.Broker, do func(*site) string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s := &site{js, ctx}
	s.create(jetstream.StreamConfig{Name: "A", Subjects: []string{"a.>"}, Discard: jetstream.DiscardNew})
	return do(s)
}

func (s *site) create(cfg jetstream.StreamConfig) {
	if _, err := s.Create(s.ctx, cfg); err != nil {
		panic(err)
	}
}

func (s *site) bucket() *broker.Bucket {
	s.create(jetstream.StreamConfig{
		Name: "KV_b", Subjects: []string{"$KV.b.>"}, Discard: jetstream.DiscardNew, MaxMsgsPerSubject: 1, AllowRollup: true, DenyDelete: true,
	})
	return broker.NewBucket(s.Broker, "b")
}

func (s *site) publish(subject, id string) string {
	head := nats.Header{}
	if id != "" {
		head["Nats-Msg-Id"] = []string{id}
	}
	return s.send(subject, head)
}

func (s *site) expect(subject string, seq uint64) string {
	return s.send(subject, nats.Header{"Nats-Expected-Last-Subject-Sequence": {fmt.Sprint(seq)}})
}

func (s *site) send(subject string, head nats.Header) string {
	ack, err := s.Publish(s.ctx, &nats.Msg{Subject: subject, Header: head, Data: make([]byte, 30)})
	var refused *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return "no responders "
	case errors.As(err, &refused):
		text := fmt.Sprint(refused.ErrorCode, " ")
		for _, said := range []string{"maximum bytes", "per subject"} {
			if strings.Contains(refused.Description, said) {
				text += said + " "
			}
		}
		return text
	case err != nil:
		return err.Error() + " "
	case ack.Duplicate:
		return fmt.Sprint(ack.Sequence, "(duplicate) ")
	}
	return fmt.Sprint(ack.Sequence, " ")
}

func (s *site) state(stream string) string {
	info, err := s.Info(s.ctx, stream, "")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return "not found "
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d-%d: %d ", info.State.FirstSeq, info.State.LastSeq, info.State.Msgs)
}

func (s *site) get(stream string, seq uint64, subject string) string {
	return sequenceOf(s.Get(s.ctx, stream, seq, subject))
}

func (s *site) last(stream, subject string) string { return sequenceOf(s.Last(s.ctx, stream, subject)) }

func sequenceOf(m *jetstream.RawStreamMsg, err error) string {
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return "none "
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(m.Sequence, " ")
}

func (s *site) purge(stream, subject string, before uint64) string {
	if err := s.Purge(s.ctx, stream, subject, before); err != nil {
		return err.Error()
	}
	return ""
}

func (s *site) delete(stream string, seq uint64) string {
	if err := s.Delete(s.ctx, stream, seq, false); err != nil {
		return err.Error()
	}
	return ""
}

// read returns the sequence and number of messages, and the number pending behind each.
func (s *site) read(stream string, from broker.From, messages int) string {
	r, err := s.Read(s.ctx, stream, from)
	if err != nil {
		return err.Error()
	}
	defer r.Stop()
	behind, pending := r.Begun()
	text := fmt.Sprintf("behind %d, %d pending: ", behind, pending)
	for range messages {
		m, err := r.Next(s.ctx)
		if err != nil {
			return text + err.Error()
		}
		text += fmt.Sprintf("%d/%d/%d ", m.Seq, m.Number, m.Pending)
	}
	return text
}
