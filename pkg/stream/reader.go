package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

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

// Next returns the next message, waiting for it as long as ctx allows. While
// NATS is away it waits too, and goes on where it was. The error is that of
// ctx, or flow.ErrGap when the next message is gone; after either, Next may
// be called again.
func (r *Reader) Next(ctx context.Context) (flow.Entry, error) {
	var wait time.Duration
	gaps := 0
	for {
		msg, err := r.read(ctx)
		if err == nil {
			seq := msg.Seq
			if r.follows(&msg) {
				r.next, r.stamp = seq+1, msg.At.UnixNano()
				r.delivered++
				r.messages.Inc()
				r.bytes.Add(float64(len(msg.Data)))
				return readEntry(r.lane, seq, msg.At, msg.Subject, msg.Header, msg.Data), nil
			}
			// Messages that were on their way when the connection was lost do
			// not come again by themselves. A new consumer brings them; if it
			// does not either, they are gone.
			if gaps++; gaps > 1 {
				r.drop()
				return flow.Entry{}, gap("lane %d has %d after %d", r.lane, seq, r.next-1)
			}
			r.drop()
			continue
		}
		if ctx.Err() != nil {
			return flow.Entry{}, ctx.Err()
		}
		if errors.Is(err, flow.ErrGap) {
			return flow.Entry{}, err
		}
		r.drop()
		r.stream.m.reopens.Inc()
		if wait = min(2*wait+50*time.Millisecond, readPause); !sleep(ctx, wait) {
			return flow.Entry{}, ctx.Err()
		}
	}
}

// follows says whether a message is the next one. Of changes only their consumer
// can tell.
func (r *Reader) follows(m *broker.Message) bool {
	if r.filter != "" {
		return m.Number == r.delivered+1
	}
	return m.Seq == r.next
}

// read takes the next message that arrives, opening again first if need be.
func (r *Reader) read(ctx context.Context) (broker.Message, error) {
	if r.reading == nil {
		if err := r.open(ctx); err != nil {
			return broker.Message{}, err
		}
	}
	for known := uint64(0); ; {
		waiting, cancel := context.WithTimeout(ctx, r.stream.silence)
		msg, err := r.reading.Next(waiting)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return msg, err
		}
		if known >= r.next && r.waits(ctx) {
			r.stream.log.Warn("a server has told of no message though there is one: reading from another", "lane", r.lane, "next", r.next, "last", known)
			return broker.Message{}, errSilent
		}
		if lane, ok := r.stream.view.Load().lane(r.lane); ok {
			known = lane.Last
		}
	}
}

// waits says whether one of the messages that the lane has is for this reader.
func (r *Reader) waits(ctx context.Context) bool {
	if r.filter == "" {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, r.stream.silence)
	defer cancel()
	first, err := r.stream.nextChange(ctx, r.next)
	return err == nil && first > 0
}

var errSilent = fmt.Errorf("%w: the server that is read from has fallen behind the others", flow.ErrUnavailable)

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
