package simulate

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/broker"
)

// server is a simulated JetStream, owned by the driver.
type server struct {
	days    *time.Duration // the driver's
	streams map[string]*log
	skew    time.Duration // of its clock
}

func newServer(d *driver) *server { return &server{days: &d.days, streams: map[string]*log{}} }

func (s *server) now() time.Time { return time.Now().Add(s.skew + *s.days) }

type log struct {
	cfg      jetstream.StreamConfig
	created  time.Time
	first    uint64 // sequence of the oldest message; last+1 when empty
	last     uint64
	bytes    uint64
	messages map[uint64]*message
	subjects map[string]uint64 // last sequence by subject
	ids      map[string]taken  // message ids of the duplicate window, purged messages included

	full   bool       // rejects messages
	behind *following // a replica that may answer reads; nil when none is behind
}

type taken struct {
	seq uint64
	at  time.Time
}

// following is a replica that ends at a sequence, until a time.
type following struct {
	last  uint64
	until time.Time
	leads time.Time // a former leader answers until then
}

type message struct {
	subject string
	header  nats.Header
	data    []byte
	at      time.Time
}

func (m *message) size() uint64 { return uint64(len(m.subject) + len(m.data) + 64) }

func refusal(code jetstream.ErrorCode, text string) error {
	return &jetstream.APIError{Code: 400, ErrorCode: code, Description: text}
}

// errNotLeader is the answer of a server that does not lead the stream.
func errNotLeader() error { return refusal(10009, "JetStream cluster not leader") }

func (s *server) create(cfg jetstream.StreamConfig) (*jetstream.StreamInfo, error) {
	if l := s.streams[cfg.Name]; l != nil {
		return nil, jetstream.ErrStreamNameAlreadyInUse
	}
	if cfg.Duplicates == 0 {
		cfg.Duplicates = 2 * time.Minute
	}
	l := &log{cfg: cfg, created: s.now(), first: 1, messages: map[uint64]*message{}, subjects: map[string]uint64{}, ids: map[string]taken{}}
	s.streams[cfg.Name] = l
	return s.info(l, ""), nil
}

// of returns the stream of a subject.
func (s *server) of(subject string) *log {
	for _, name := range slices.Sorted(maps.Keys(s.streams)) {
		for _, filter := range s.streams[name].cfg.Subjects {
			if fits(subject, filter) {
				return s.streams[name]
			}
		}
	}
	return nil
}

func fits(subject, filter string) bool {
	if subject == filter {
		return true
	}
	names, wants := strings.Split(subject, "."), strings.Split(filter, ".")
	for i, want := range wants {
		switch {
		case want == ">":
			return len(names) > i
		case i >= len(names) || want != "*" && want != names[i]:
			return false
		}
	}
	return len(names) == len(wants)
}

func overlap(a, b string) bool {
	names, wants := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(names), len(wants)) {
		switch {
		case names[i] == ">" || wants[i] == ">":
			return true
		case names[i] != wants[i] && names[i] != "*" && wants[i] != "*":
			return false
		}
	}
	return len(names) == len(wants)
}

func (s *server) publish(msg *nats.Msg) (broker.Ack, error) {
	l := s.of(msg.Subject)
	if l == nil {
		return broker.Ack{}, nats.ErrNoResponders
	}
	s.expire(l)
	header := func(name string) string {
		if v := msg.Header[name]; len(v) > 0 {
			return v[0]
		}
		return ""
	}
	if text := header("Nats-Expected-Last-Subject-Sequence"); text != "" {
		want, _ := strconv.ParseUint(text, 10, 64)
		if l.subjects[msg.Subject] != want {
			return broker.Ack{}, refusal(10071, "wrong last sequence: "+strconv.FormatUint(l.subjects[msg.Subject], 10))
		}
	}
	id := header("Nats-Msg-Id")
	if was, known := l.ids[id]; known && id != "" {
		return broker.Ack{Stream: l.cfg.Name, Sequence: was.seq, Duplicate: true}, nil
	}
	m := &message{msg.Subject, maps.Clone(msg.Header), slices.Clone(msg.Data), s.now()}
	before, replaces := l.subjects[msg.Subject], l.cfg.MaxMsgsPerSubject == 1
	switch {
	case l.full || l.cfg.MaxBytes > 0 && l.bytes+m.size() > uint64(l.cfg.MaxBytes):
		return broker.Ack{}, refusal(10077, "maximum bytes exceeded")
	case replaces && before > 0 && l.cfg.DiscardNewPerSubject:
		return broker.Ack{}, refusal(10077, "maximum messages per subject exceeded")
	}
	l.last++
	l.messages[l.last], l.subjects[msg.Subject] = m, l.last
	l.bytes += m.size()
	if id != "" {
		l.ids[id] = taken{l.last, m.at}
	}
	if replaces && before > 0 {
		l.remove(before)
	}
	return broker.Ack{Stream: l.cfg.Name, Sequence: l.last}, nil
}

func (l *log) remove(seq uint64) {
	m := l.messages[seq]
	if m == nil {
		return
	}
	delete(l.messages, seq)
	l.bytes -= m.size()
	if l.subjects[m.subject] == seq {
		delete(l.subjects, m.subject)
		for _, at := range slices.Backward(slices.Sorted(maps.Keys(l.messages))) {
			if l.messages[at].subject == m.subject {
				l.subjects[m.subject] = at
				break
			}
		}
	}
	for l.first <= l.last && l.messages[l.first] == nil {
		l.first++
	}
}

// expire drops expired messages and ids.
func (s *server) expire(l *log) {
	now := s.now()
	if l.cfg.MaxAge > 0 {
		for _, seq := range slices.Sorted(maps.Keys(l.messages)) {
			if now.Sub(l.messages[seq].at) >= l.cfg.MaxAge {
				l.remove(seq)
			}
		}
	}
	for id, was := range l.ids {
		if now.Sub(was.at) >= l.cfg.Duplicates {
			delete(l.ids, id)
		}
	}
}

func (s *server) info(l *log, subjects string) *jetstream.StreamInfo {
	s.expire(l)
	info := &jetstream.StreamInfo{Config: l.cfg, Created: l.created, TimeStamp: s.now()}
	info.State = jetstream.StreamState{Msgs: uint64(len(l.messages)), Bytes: l.bytes, FirstSeq: l.first, LastSeq: l.last}
	if subjects != "" {
		info.State.Subjects = map[string]uint64{}
		for _, m := range l.messages {
			if fits(m.subject, subjects) {
				info.State.Subjects[m.subject]++
			}
		}
	}
	return info
}

// get returns message seq, or the first of a subject from seq on.
func (s *server) get(l *log, seq uint64, subject string) (*jetstream.RawStreamMsg, error) {
	s.expire(l)
	if subject != "" {
		for seq = max(seq, l.first); seq <= l.last; seq++ {
			if m := l.messages[seq]; m != nil && fits(m.subject, subject) {
				break
			}
		}
	}
	return raw(l.messages[seq], seq)
}

// lastOf returns the last message of a subject.
func (s *server) lastOf(l *log, subject string) (*jetstream.RawStreamMsg, error) {
	s.expire(l)
	seq := l.subjects[subject]
	return raw(l.messages[seq], seq)
}

func raw(m *message, seq uint64) (*jetstream.RawStreamMsg, error) {
	if m == nil {
		return nil, jetstream.ErrMsgNotFound
	}
	return &jetstream.RawStreamMsg{Subject: m.subject, Sequence: seq, Header: maps.Clone(m.header), Data: slices.Clone(m.data), Time: m.at}, nil
}

func (l *log) purge(subject string, before uint64) {
	for _, seq := range slices.Sorted(maps.Keys(l.messages)) {
		if (before == 0 || seq < before) && (subject == "" || fits(l.messages[seq].subject, subject)) {
			l.remove(seq)
		}
	}
}

// copy copies a log, for an image.
func (l *log) copy() *log {
	c := *l
	c.messages, c.subjects, c.ids = maps.Clone(l.messages), maps.Clone(l.subjects), maps.Clone(l.ids)
	return &c
}
