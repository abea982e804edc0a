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
	// readAheadBytes is the default prefetch of a Reader.
	readAheadBytes = 16 << 20

	// readHeartbeat is the server's idle heartbeat. After two missed ones the Reader reopens.
	readHeartbeat = broker.Heartbeat

	// readPause is the longest pause between attempts to reopen.
	readPause = 2 * time.Second

	// readSilence is the time without messages after which a Reader checks whether the lane
	// has one: the server of its consumer may hold a stale copy and still send heartbeats.
	// Missing heartbeats are detected within one wait, which must be longer than two of
	// them.
	readSilence = 3 * readHeartbeat
)

// Reader reads one lane, or only its changes, in order: every message once, without gaps.
type Reader struct {
	stream    *Stream
	ahead     int // prefetch limit in bytes
	lane      int
	next      uint64 // the next message, or the one after the last change
	stamp     int64  // stored time of the previous message, ns since 1970; 0: none read
	filter    string // the subject of changes; empty: all
	delivered uint64 // messages of the consumer
	opened    *Lane  // at the first open

	reading broker.Reading // nil: to be reopened

	forget func() bool // unregisters from the connection of reading

	messages, bytes prometheus.Counter
}

// OpenLane reads a lane from a sequence on; 0 equals 1. The Reader prefetches at most ahead bytes, but at least one largest
// message; 0 is 16 MiB. The error is flow.ErrGap if the lane no longer holds that message, or ends before the one that
// precedes it.
func (s *Stream) OpenLane(ctx context.Context, lane int, from uint64, ahead int) (*Reader, error) {
	return s.openReader(ctx, &Reader{lane: lane, next: max(from, 1), ahead: max(cmp.Or(ahead, readAheadBytes), minAhead)}) // with less, the largest message would stall
}

// OpenChanges reads the changes of lane 0 from a sequence on. The Purger removes only applied ones, so a later first message
// is not a gap. The error is flow.ErrGap if the lane ends before the message that precedes from.
func (s *Stream) OpenChanges(ctx context.Context, from uint64) (*Reader, error) {
	return s.openReader(ctx, &Reader{next: max(from, 1), filter: ChangePrefix + ">", ahead: max(readAheadBytes, minAhead)})
}

func (s *Stream) openReader(ctx context.Context, r *Reader) (*Reader, error) {
	label := strconv.Itoa(r.lane)
	r.stream, r.messages, r.bytes = s, s.m.readMsgs.WithLabelValues(label), s.m.readBytes.WithLabelValues(label)
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// open starts reading at r.next. A consumer is lost with its server or connection, r.next is not.
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
		return gap("lane %d was recreated while it was read", r.lane)
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
	// Otherwise only missing heartbeats would end it.
	r.reading, r.forget = reading, s.link.onLoss(reading.Stop)
	return nil
}

// unchanged checks that the lane still holds the message read last: a lane that was set back may be as long again, with
// other messages.
func (r *Reader) unchanged(ctx context.Context, lane *Lane) error {
	if r.stamp == 0 {
		return nil
	}
	now, err := NewLaneStates(r.stream).stamp(ctx, lane, r.next-1)
	if err == nil && now != 0 && now != r.stamp {
		err = gap("message %d of lane %d was stored at %s, but the one read before at %s: the lane was set back, and other messages have its sequences", r.next-1, r.lane, moment(now), moment(r.stamp))
	}
	return err
}

// StreamID is Lane.StreamID at the first open.
func (r *Reader) StreamID() string { return r.opened.StreamID() }

// Created is the creation time of that stream, by the server's clock.
func (r *Reader) Created() time.Time { return r.opened.Created }

// follows reports whether a message is the next one. For changes only the consumer's numbering shows it.
func (r *Reader) follows(m *broker.Message) bool {
	if r.filter != "" {
		return m.Number == r.delivered+1
	}
	return m.Seq == r.next
}

// Next returns the next message, waiting for it as long as ctx allows. It also waits while NATS is unreachable, and resumes.
// The error is that of ctx, or flow.ErrGap if the next message is gone; Next may be called again after either.
func (r *Reader) Next(ctx context.Context) (flow.Entry, error) {
	var pause time.Duration
	var known uint64 // the lane's end at the last silence
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
			// Messages in flight when the connection was lost are not sent again. A new
			// consumer sends them; if not, they are gone.
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

// isPassedOver reports whether the lane had a message for this reader before the last silence: the server of the consumer lags.
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
	r.stream.log.Warn("consumer silent although messages exist; reopening", "lane", r.lane, "next", r.next, "last", known)
	return true
}

// readEntry decodes a message of a lane. Without a table it was not written by an api's Publish: it is a change, a move
// marker, or foreign, described by its headers.
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

// decode decodes a message without a table, or a dead letter.
func decode(lane int, seq uint64, at time.Time, topic string, head nats.Header, body []byte) flow.Message {
	m := flow.Message{
		Lane: lane, Seq: seq, Topic: topic, Body: body,
		Received:    at.UTC().Truncate(time.Millisecond), // default for foreign messages: a zero time would expire immediately
		ID:          first(head, headerID),
		Encoding:    first(head, headerEncoding),
		Subject:     first(head, headerSubject),
		Source:      first(head, headerSource),
		TraceParent: first(head, headerTrace),
	}
	// An invalid number is foreign; the ingester counts the records itself.
	m.Records, _ = strconv.Atoi(first(head, headerRecords))
	m.Revision, _ = strconv.ParseUint(first(head, headerRevision), 10, 64)
	if ms, err := strconv.ParseInt(first(head, headerReceived), 10, 64); err == nil {
		m.Received = time.UnixMilli(ms).UTC()
	}
	return m
}

// drop drops the consumer; the next read opens another.
func (r *Reader) drop() {
	if r.reading == nil {
		return
	}
	r.forget()
	r.reading.Stop()
	r.reading = nil
}

// Close ends reading. Not concurrently with Next.
func (r *Reader) Close() { r.drop() }

// sleep waits, and reports whether ctx is still open.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
