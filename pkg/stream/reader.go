package stream

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/broker"
	"sluice/pkg/flow"
)

const (
	// readAheadBytes is what messages take that a Reader holds ahead of its caller,
	// unless the caller says so.
	readAheadBytes = 16 << 20

	// readHeartbeat is how often the server says that there is nothing new.
	// When it is silent for twice as long the Reader opens again.
	readHeartbeat = broker.Heartbeat

	// readPause is the longest pause between two tries to open again.
	readPause = 2 * time.Second

	// readSilence is how long a Reader hears of no message before it looks whether
	// the lane has one since the silence before: the server of its consumer may hold
	// a copy that has fallen behind the others, or may not have noticed what it has
	// caught up with. Its heartbeats come all the while; that they do not is noticed
	// within one wait, which must be longer than two of them.
	readSilence = 3 * readHeartbeat
)

// Reader reads one lane in order, every message once, without gaps; or only its
// changes.
type Reader struct {
	stream    *Stream
	ahead     int // bytes of messages that it holds at most
	lane      int
	next      uint64 // the next message, or the one behind the last change
	stamp     int64  // when the stream took the message before, ns since 1970; 0 while none was read
	filter    string // the subject of changes, empty when all is read
	delivered uint64 // messages of the consumer
	opened    *Lane  // as it was when it was opened first

	reading broker.Reading // nil while it has to be opened again

	forget func() bool // lets go of the connection that reading was opened on

	messages, bytes prometheus.Counter
}

// OpenLane reads a lane from a sequence on; 0 is the same as 1. The Reader holds at
// most ahead bytes of messages, but never less than one of the largest; 0 for 16 MiB.
// The error is flow.ErrGap when the lane does not hold that message any more, or when
// it ends before the one that precedes it.
func (s *Stream) OpenLane(ctx context.Context, lane int, from uint64, ahead int) (*Reader, error) {
	return s.openReader(ctx, &Reader{lane: lane, next: max(from, 1), ahead: max(cmp.Or(ahead, readAheadBytes), leastAhead)}) // below the largest message it would stall
}

// OpenChanges reads the changes of lane 0 from a sequence on. What the lane does
// not hold any more of before its first message was applied, as far as the log can
// tell: the Purger sees to it. The error is flow.ErrGap when the lane ends
// before the message that precedes from.
func (s *Stream) OpenChanges(ctx context.Context, from uint64) (*Reader, error) {
	return s.openReader(ctx, &Reader{next: max(from, 1), filter: ChangePrefix + ">", ahead: max(readAheadBytes, leastAhead)})
}

func (s *Stream) openReader(ctx context.Context, r *Reader) (*Reader, error) {
	label := strconv.Itoa(r.lane)
	r.stream, r.messages, r.bytes = s, s.m.readMsgs.WithLabelValues(label), s.m.readBytes.WithLabelValues(label)
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// open starts reading at c.next. The consumer is nothing but a moving window of
// the server's, which dies with the server or with the connection: what has
// been read is the caller's to know.
func (r *Reader) open(ctx context.Context) error {
	s := r.stream
	state, err := s.state(ctx, r.lane)
	if errors.Is(err, jetstream.ErrStreamNotFound) && r.opened != nil {
		return gap("lane %d was deleted while it was read", r.lane)
	}
	if err != nil {
		return err
	}
	switch {
	case r.opened != nil && r.opened.StreamID() != state.StreamID():
		return gap("lane %d was deleted and made again while it was read", r.lane)
	case state.First > r.next && r.filter == "":
		return gap("lane %d begins at %d, wanted %d", r.lane, state.First, r.next)
	case state.Last+1 < r.next:
		return s.endsBefore(state, gap("lane %d ends at %d, wanted %d", r.lane, state.Last, r.next))
	}
	if err := r.unchanged(ctx, state); err != nil {
		return err
	}
	r.opened, r.delivered = state, 0
	reading, err := s.js.Read(ctx, LaneName(r.lane), broker.From{Seq: r.next, Subject: r.filter, Ahead: r.ahead})
	if err != nil {
		return unavailable(fmt.Errorf("open lane %d: %w", r.lane, err), time.Second)
	}
	// By itself it would notice by missing heartbeats only.
	r.reading, r.forget = reading, s.link.onLoss(reading.Stop)
	return nil
}

// unchanged makes sure that the message that was read last is the one that the lane holds
// now: a lane that was set back may be as long again, by other messages.
func (r *Reader) unchanged(ctx context.Context, lane *Lane) error {
	if r.stamp == 0 {
		return nil
	}
	now, err := NewLaneStates(r.stream).stamp(ctx, lane, r.next-1)
	if err == nil && now != 0 && now != r.stamp {
		err = gap("message %d of lane %d is of %s, but the one that was read had come at %s: the lane's data is of an earlier time, and other messages have taken the numbers since", r.next-1, r.lane, moment(now), moment(r.stamp))
	}
	return err
}

// StreamID names the stream behind the lane: see Positions.Identity.
func (r *Reader) StreamID() string { return r.opened.StreamID() }

// Created is when that stream was made, by the server's clock.
func (r *Reader) Created() time.Time { return r.opened.Created }

// follows says whether a message is the next one. Of changes only their consumer
// can tell.
func (r *Reader) follows(m *broker.Message) bool {
	if r.filter != "" {
		return m.Number == r.delivered+1
	}
	return m.Seq == r.next
}

// Next returns the next message, waiting for it as long as ctx allows. While
// NATS is away it waits too, and goes on where it was. The error is that of
// ctx, or flow.ErrGap when the next message is gone; after either, Next may
// be called again.
func (r *Reader) Next(ctx context.Context) (flow.Entry, error) {
	var pause time.Duration
	var known uint64 // the lane's end, when it was silent before
	for gaps := 0; ; {
		var msg broker.Message
		var err error
		if r.reading == nil {
			known, err = 0, r.open(ctx)
		}
		if err == nil {
			waiting, cancel := context.WithTimeout(ctx, r.stream.silence)
			msg, err = r.reading.Next(waiting)
			cancel()
		}
		switch {
		case err == nil && r.follows(&msg):
			r.next, r.stamp = msg.Seq+1, msg.At.UnixNano()
			r.delivered++
			r.messages.Inc()
			r.bytes.Add(float64(len(msg.Data)))
			return readEntry(r.lane, msg.Seq, msg.At, msg.Subject, msg.Header, msg.Data), nil
		case err == nil:
			// Messages that were on their way when the connection was lost do
			// not come again by themselves. A new consumer brings them; if it
			// does not either, they are gone.
			r.drop()
			if gaps++; gaps > 1 {
				return flow.Entry{}, gap("lane %d has %d after %d", r.lane, msg.Seq, r.next-1)
			}
			continue
		case ctx.Err() != nil:
			return flow.Entry{}, ctx.Err()
		case errors.Is(err, flow.ErrGap):
			return flow.Entry{}, err
		case r.reading != nil && errors.Is(err, context.DeadlineExceeded) && !r.isPassedOver(ctx, known):
			if lane, ok := r.stream.view.Load().lane(r.lane); ok {
				known = lane.Last
			}
			continue
		}
		r.drop()
		r.stream.m.reopens.Inc()
		if pause = min(2*pause+50*time.Millisecond, readPause); !sleep(ctx, pause) {
			return flow.Entry{}, ctx.Err()
		}
	}
}

// isPassedOver says whether the lane had a message for this reader before the silence
// that has just passed: the server that is read from has fallen behind the others.
func (r *Reader) isPassedOver(ctx context.Context, known uint64) bool {
	if known < r.next {
		return false
	}
	if r.filter != "" {
		ctx, cancel := context.WithTimeout(ctx, r.stream.silence)
		defer cancel()
		if first, err := r.stream.nextChange(ctx, r.next); err != nil || first == 0 {
			return false
		}
	}
	r.stream.log.Warn("a server has told of no message though there is one: reading from another", "lane", r.lane, "next", r.next, "last", known)
	return true
}

// readEntry turns a message of a lane into the domain's. One without a table was
// not written by an api: it is a change, a move marker, or written by hand, and its
// headers describe it.
func readEntry(lane int, seq uint64, at time.Time, topic string, head nats.Header, body []byte) flow.Entry {
	e := flow.Entry{Lane: lane, Seq: seq, Topic: topic, Stored: at, Body: body}
	text := first(head, headerEntry)
	if text == "" {
		e.Messages = []flow.Message{decode(lane, seq, at, topic, head, body)}
		return e
	}
	table, err := base64.RawStdEncoding.DecodeString(text)
	if err == nil {
		e.Table = table
		err = e.Parse(table, body)
	} else {
		err = fmt.Errorf("the table of the entry is not base64: %w", err)
	}
	if err != nil {
		e.Err = err
		e.Messages = []flow.Message{decode(lane, seq, at, topic, head, body)}
	}
	return e
}

// decode turns a message without a table, or a dead letter, into the domain's.
func decode(lane int, seq uint64, at time.Time, topic string, head nats.Header, body []byte) flow.Message {
	m := flow.Message{
		Lane: lane, Seq: seq, Topic: topic, Body: body,
		Received:    at.UTC().Truncate(time.Millisecond), // fallback for foreign messages: a zero time would expire at once
		ID:          first(head, headerID),
		Encoding:    first(head, headerEncoding),
		Subject:     first(head, headerSubject),
		Source:      first(head, headerSource),
		TraceParent: first(head, headerTrace),
	}
	// A number that does not parse was not written by us; the ingester counts
	// the records itself.
	m.Records, _ = strconv.Atoi(first(head, headerRecords))
	m.Revision, _ = strconv.ParseUint(first(head, headerRevision), 10, 64)
	if ms, err := strconv.ParseInt(first(head, headerReceived), 10, 64); err == nil {
		m.Received = time.UnixMilli(ms).UTC()
	}
	return m
}

// drop gives up the consumer; the next read opens another.
func (r *Reader) drop() {
	if r.reading == nil {
		return
	}
	r.forget()
	r.reading.Stop()
	r.reading = nil
}

// Close ends reading. It is not to be called while Next runs.
func (r *Reader) Close() { r.drop() }

// sleep waits and says whether ctx still stands.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
