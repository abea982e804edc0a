package stream_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go"

	"sluice/pkg/flow"
	"sluice/pkg/formattest"
	"sluice/pkg/stream"
)

// kept is a message of a stream, or an entry of a bucket, as NATS keeps it.
type kept struct {
	Subject string              `json:"subject"`
	Header  map[string][]string `json:"header,omitempty"`
	Text    string              `json:"text,omitempty"`  // the body,
	Bytes   []byte              `json:"bytes,omitempty"` // or this, when it is no text
	Gone    uint64              `json:"gone,omitempty"`  // this message of lane 0 is deleted before
}

// meaning is what a reader makes of all that is kept.
type meaning struct {
	Entries  []flow.Entry
	Position flow.Position // of lane 0
	Changes  flow.Position // of its changes
	Sources  []stream.Source
	Letters  []stream.DeadLetter
	Settled  []stream.Settled
}

// What differs from run to run, and what stands for it.
const (
	frozenCreated = "{created}" // of lane 0, ns
	frozenStored  = "{stored}"  // a time of a message of it, ns
	frozenName    = "{name}"    // of an entry
)

// TestFormatsOfEveryVersion: messages of lanes, positions and claims, sources, dead
// letters and the notes about them, and what is left of messages that were forgotten
// in part.
func TestFormatsOfEveryVersion(t *testing.T) {
	t.Parallel()
	formattest.Check(t, written(t), readFormats, cmpopts.IgnoreUnexported(stream.Source{}, stream.DeadLetter{}), cmpopts.EquateEmpty())
}

// written is everything that the package writes, each in all its forms.
func written(t *testing.T) []kept {
	w := open(t, stream.Config{})
	p := w.publisher()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	received := time.UnixMilli(1_763_701_200_123).UTC()
	const one, two = `[{"id":"a"},{"id":"b"}]`, `[{"key":5}]`
	packed := append([]byte{byte(len(two)), byte(len(two)-1) << 2}, two...) // the simplest S2 there is: one literal
	for _, sub := range []*flow.Submission{
		{ID: "00112233445566778899aabbccddeeff", Hash: "ffeeddccbbaa99887766554433221100", Subject: "engine-a", Source: "cluster-a", Received: received,
			TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Identified: true, Pieces: []flow.Piece{{Body: []byte(one), Records: 2}}},
		{ID: "key-7", Hash: "0", Subject: "engine-b", Source: "Quelle ä", Received: received.Add(time.Second),
			Pieces: []flow.Piece{{Body: packed, Encoding: flow.EncodingS2, Records: 1}}},
		{ID: "key-8", Hash: "1", Subject: "engine-a", Source: "cluster-a", Received: received, Pieces: []flow.Piece{{Body: []byte(one), Records: 2}, {Body: []byte(two), Records: 1}}},
	} {
		_, err := p.Publish(t.Context(), sub)
		must(err)
	}
	_, _, err := p.PublishChange(t.Context(), patch("ann", "change-1", nil))
	must(err)
	_, err = w.Fence(t.Context(), 0, "cluster-a")
	must(err)

	letters := stream.NewDeadLetters(w.Stream).As("ann")
	whole, foreign := dead(8), dead(9)
	whole.Index, whole.Code, whole.Message.Encoding, whole.Message.Body = -1, "broken_message", flow.EncodingS2, packed
	foreign.Message = flow.Message{Subject: "engine-a", Source: "cluster-a", Received: received, Body: []byte("no record")}
	for _, d := range []flow.Dead{dead(5), dead(6), dead(7), whole, foreign} {
		must(letters.SetAside(t.Context(), d))
	}
	// Only one of half a mebibyte is packed by itself.
	large := nats.NewMsg(stream.DeadPrefix + "0.0.10.0")
	large.Header = nats.Header{"Sluice-Code": {"refused"}, "Sluice-Index": {"0"}, "Sluice-Packed": {"s2"}, "Sluice-Records": {"1"}, "Sluice-Received": {"1763701200123"}, "Sluice-Topic": {"flow.0.record"}}
	large.Data = packed
	_, err = w.jetStream().PublishMsg(large)
	must(err)
	all := w.list(stream.DeadFilter{})
	must(letters.Drop(t.Context(), all[1]))
	_, err = letters.Replay(t.Context(), p, all[2])
	must(err)

	e := w.read(1, 1)[0]
	must(w.Redact(t.Context(), &e, firstOf("r1")))

	identity, err := stream.NewPositions(w.Stream).Identity(t.Context(), 0)
	must(err)
	_, err = stream.NewPositions(w.Stream).Swap(t.Context(), 0, flow.Position{
		Owner: "ingester-1", Incarnation: 1_763_701_200_000, Stream: identity, Done: 1, Stamp: 5, Base: 1, Stored: 1, Window: 1, Void: 1,
		Claim: &flow.Claim{First: 2, Last: 3, Stamp: 7, Token: "FLOW_0@1763701200000:2-3:00ff", Dropped: "0-1", Void: "1-2", At: 1_763_701_200_123,
			From: 1, To: 2, Dead: "refused", Refused: 1},
		Totals:  flow.Totals{Read: 5, Stored: 1, Repeated: 2, Dead: 1, Void: 1},
		Recount: []string{"2025-11-21"}, Hold: &flow.Hold{By: "ann", Until: 1_763_701_200_456},
	})
	must(err)
	_, err = stream.NewChangePositions(w.Stream).Swap(t.Context(), 0, flow.Position{Owner: "ingester-1", Incarnation: 1_763_701_200_000, Stream: identity, Done: 4, Stamp: 6})
	must(err)
	return w.kept(t)
}

// kept is all that the streams hold, with what differs from run to run replaced.
func (w *world) kept(t *testing.T) (all []kept) {
	created := w.created(t)
	names := map[string]bool{}
	for _, name := range []string{"FLOW_0", "FLOW_DEAD", "FLOW_NOTES", "FLOW_REDACTED", "KV_flow_sources", "KV_flow_lanes"} {
		info, err := w.jetStream().StreamInfo(name)
		if err != nil {
			t.Fatal(err)
		}
		for seq := uint64(1); seq <= info.State.LastSeq; seq++ {
			m, err := w.jetStream().GetMsg(name, seq)
			if errors.Is(err, nats.ErrMsgNotFound) {
				if name == "FLOW_0" { // the others behind it keep their numbers
					all = append(all, kept{Subject: "flow.0.record", Text: "gone"})
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			one := kept{Subject: m.Subject, Header: maps.Clone(map[string][]string(m.Header)), Text: string(m.Data)}
			if !utf8.Valid(m.Data) {
				one.Text, one.Bytes = "", m.Data
			}
			if id := m.Header.Get("Nats-Msg-Id"); m.Header.Get("Sluice-Entry") != "" && id != "" {
				if names[id] {
					t.Errorf("two entries have the name %s", id)
				}
				names[id] = true
				one.Header["Nats-Msg-Id"] = []string{frozenName}
			}
			if one.Header["Sluice-Stored"] != nil {
				one.Header["Sluice-Stored"] = []string{frozenStored}
				one.Gone = 1
			}
			one.Subject = strings.ReplaceAll(one.Subject, created, frozenCreated)
			one.Text = strings.ReplaceAll(one.Text, created, frozenCreated)
			all = append(all, one)
		}
	}
	return all
}

// created is when lane 0 was made, as it stands in what is kept.
func (w *world) created(t *testing.T) string {
	t.Helper()
	identity, err := stream.NewPositions(w.Stream).Identity(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	_, created, _ := strings.Cut(identity, "@")
	return created
}

// readFormats puts all of it into streams of their own, and reads it.
func readFormats(t *testing.T, all []kept) (m meaning) {
	w := open(t, stream.Config{})
	created := w.created(t)
	entries := 0
	for i, one := range all {
		if one.Gone > 0 {
			if err := w.jetStream().DeleteMsg("FLOW_0", one.Gone); err != nil {
				t.Fatal(err)
			}
		}
		msg := nats.NewMsg(strings.ReplaceAll(one.Subject, frozenCreated, created))
		for name, values := range one.Header {
			msg.Header[name] = []string{strings.NewReplacer(frozenStored, "1763701200000000000", frozenName, fmt.Sprint("entry-", i)).Replace(values[0])}
		}
		msg.Data = append([]byte(strings.ReplaceAll(one.Text, frozenCreated, created)), one.Bytes...)
		ack, err := w.jetStream().PublishMsg(msg)
		if err != nil {
			t.Fatalf("%s: %v", one.Subject, err)
		}
		if ack.Stream == "FLOW_0" {
			entries++
		}
	}
	if err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.Entries = w.read(1, entries)
	for i := range m.Entries {
		if e := &m.Entries[i]; e.Err != nil {
			t.Errorf("entry %d: %v", e.Seq, e.Err)
		} else if e.Forgotten.Stored == nil {
			e.Stored = time.Time{}
			for j := range e.Messages {
				if m := &e.Messages[j]; strings.HasSuffix(m.Topic, ".fence") || string(m.Body) == "gone" { // it says no time: the one at which it was stored
					m.Received = time.Time{}
				}
			}
		}
	}
	var err error
	if m.Position, err = stream.NewPositions(w.Stream).Stand(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if m.Changes, err = stream.NewChangePositions(w.Stream).Stand(t.Context(), 0); err != nil {
		t.Error(err)
	}
	for _, p := range []*flow.Position{&m.Position, &m.Changes} {
		p.Stream, p.Revision = strings.ReplaceAll(p.Stream, created, frozenCreated), 0
	}
	m.Sources = w.Sources()
	for _, d := range w.list(stream.DeadFilter{}) {
		d.At = time.Time{}
		m.Letters = append(m.Letters, d)
	}
	for s, err := range stream.NewDeadLetters(w.Stream).Settled(t.Context()) {
		if err != nil {
			t.Error(err)
		}
		s.At = time.Time{}
		m.Settled = append(m.Settled, s)
	}
	return throughJSON(t, m)
}

// throughJSON is what is left of m in a file.
func throughJSON(t *testing.T, m meaning) (out meaning) {
	t.Helper()
	text, err := json.Marshal(m)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}
