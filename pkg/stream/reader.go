package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/flow"
)

const (
	// readAhead bounds the messages a Reader holds ahead of its caller, and
	// readAheadBytes what they take unless the caller says so.
	readAhead      = 2000
	readAheadBytes = 16 << 20

	// readHeartbeat is how often the server says that there is nothing new.
	// When it is silent for twice as long the Reader opens again.
	readHeartbeat = 2 * time.Second

	// readerIdle is how long the server keeps the consumer of a reader that
	// has gone without closing.
	readerIdle = 30 * time.Second

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
	stream *Stream
	ahead  int // bytes of messages that it holds at most
	lane   int
	next   uint64 // the next message, or the one behind the last change
	filter string // the subject of changes, empty when all is read
	taken  uint64 // messages that the consumer has delivered
	opened *Lane  // as it was when it was opened first

	redacted []uint64      // messages from next on that are read elsewhere, as of the last look
	held     jetstream.Msg // one that came while a message before it was redacted, nil when there is none

	consumer jetstream.Consumer
	iter     jetstream.MessagesContext // nil while it has to be opened again

	forget func() bool // lets go of the connection that iter was opened on

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
	if r.filter == "" {
		if r.redacted, err = s.redactedIfKnown(ctx, state, r.next); err != nil {
			return err
		}
	}
	switch {
	case r.opened != nil && r.opened.Identity() != state.Identity():
		return gap("lane %d was deleted and made again while it was read", r.lane)
	case state.First > r.next && r.filter == "" && !r.isRedacted():
		return gap("lane %d begins at %d, wanted %d", r.lane, state.First, r.next)
	case state.Last+1 < r.next:
		return s.endsBefore(state, gap("lane %d ends at %d, wanted %d", r.lane, state.Last, r.next))
	}
	r.opened, r.taken = state, 0
	r.consumer, err = s.js.CreateConsumer(ctx, LaneName(r.lane), jetstream.ConsumerConfig{
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       r.next,
		FilterSubject:     r.filter,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: readerIdle,
	})
	if err != nil {
		return unavailable(fmt.Errorf("open lane %d: %w", r.lane, err), time.Second)
	}
	r.iter, err = r.consumer.Messages(
		jetstream.PullMaxMessagesWithBytesLimit(readAhead, r.ahead),
		jetstream.PullHeartbeat(readHeartbeat),
		jetstream.WithMessagesErrOnMissingHeartbeat(true),
	)
	if err != nil {
		return unavailable(fmt.Errorf("open lane %d: %w", r.lane, err), time.Second)
	}
	// The iterator itself would notice by missing heartbeats only.
	r.forget = s.link.onLoss(r.iter.Stop)
	return nil
}

// Identity names the stream behind the lane: see Positions.Identity.
func (r *Reader) Identity() string { return r.opened.Identity() }

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
		if r.isRedacted() {
			e, err := r.stream.redactedEntry(ctx, r.opened, r.next)
			if err == nil {
				r.next++
				r.redacted = r.redacted[1:]
			}
			return e, err
		}
		msg, err := r.read(ctx)
		if err == nil && msg == nil {
			continue // the next one is read elsewhere
		}
		if err == nil {
			meta, err := msg.Metadata()
			if err != nil {
				return flow.Entry{}, fmt.Errorf("read lane %d: %w", r.lane, err)
			}
			seq := meta.Sequence.Stream
			if r.filter == "" && seq < r.next { // it was redacted, and is not deleted yet
				continue
			}
			if r.follows(meta) {
				r.next = seq + 1
				r.taken++
				r.messages.Inc()
				r.bytes.Add(float64(len(msg.Data())))
				return readEntry(r.lane, seq, meta.Timestamp, msg.Subject(), msg.Headers(), msg.Data()), nil
			}
			// It may have been redacted since it was looked for.
			if r.filter == "" {
				if r.redacted, err = r.stream.redactedFrom(ctx, r.opened, r.next); err != nil {
					return flow.Entry{}, err
				}
				if r.isRedacted() {
					r.held = msg
					continue
				}
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
func (r *Reader) follows(m *jetstream.MsgMetadata) bool {
	if r.filter != "" {
		return m.Sequence.Consumer == r.taken+1
	}
	return m.Sequence.Stream == r.next
}

// isRedacted says whether the next message is read elsewhere, by what is known.
func (r *Reader) isRedacted() bool { return len(r.redacted) > 0 && r.redacted[0] == r.next }

// dueAfter is how long a Reader waits for a message that was there when it was
// opened. It may have been redacted since, and be the last one.
const dueAfter = 5 * time.Second

// read takes the next message that arrives, opening again first if need be; nil
// when that finds that the next one is redacted.
func (r *Reader) read(ctx context.Context) (jetstream.Msg, error) {
	if held := r.held; held != nil {
		r.held = nil
		return held, nil
	}
	if r.iter == nil {
		if err := r.open(ctx); err != nil {
			return nil, err
		}
		if r.isRedacted() {
			return nil, nil
		}
	}
	if r.filter == "" && r.next <= r.opened.Last {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, dueAfter)
		defer cancel()
	}
	for known := uint64(0); ; {
		waiting, cancel := context.WithTimeout(ctx, r.stream.silence)
		msg, err := r.iter.Next(jetstream.NextContext(waiting))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return msg, err
		}
		if known >= r.next && r.waits(ctx) {
			r.stream.log.Warn("a server has told of no message though there is one: reading from another", "lane", r.lane, "next", r.next, "last", known)
			return nil, errSilent
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

var errSilent = errors.New("the server that is read from has fallen behind the others")

// drop gives up the consumer; the next read opens another.
func (r *Reader) drop() {
	r.held = nil
	if r.iter == nil {
		return
	}
	r.forget()
	r.iter.Stop()
	r.iter = nil
	if !r.stream.nc.IsConnected() {
		return // the server drops it by itself after readerIdle
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	name := r.consumer.CachedInfo().Name
	if err := r.stream.js.DeleteConsumer(ctx, LaneName(r.lane), name); err != nil {
		r.stream.log.Debug("delete the consumer of a reader", "lane", r.lane, "error", err)
	}
}

// Heads calls f with the messages of a lane from one to another, as many as it
// still holds and in order, with what their headers say and without their bodies.
func (s *Stream) Heads(ctx context.Context, lane int, from, to uint64, f func(*flow.Entry) error) error {
	if from > to {
		return nil
	}
	if from == to { // a consumer would cost more than the body
		msg, err := s.message(ctx, lane, from)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			state, err := s.state(ctx, lane)
			if err != nil {
				return err
			}
			e, err := s.redactedEntry(ctx, state, from)
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			return f(&e)
		}
		if err != nil {
			return unavailable(fmt.Errorf("read message %d of lane %d: %w", from, lane, err), time.Second)
		}
		e := readEntry(lane, from, msg.Time, msg.Subject, msg.Header, msg.Data)
		return f(&e)
	}
	state, err := s.state(ctx, lane)
	if err != nil {
		return err
	}
	redacted, err := s.redactedIfKnown(ctx, state, from)
	if err != nil {
		return err
	}
	before := func(seq uint64) error { // what was redacted before a message
		for ; len(redacted) > 0 && redacted[0] < min(seq, to+1); redacted = redacted[1:] {
			e, err := s.redactedEntry(ctx, state, redacted[0])
			if err != nil {
				return err
			}
			e.Body = nil
			if err := f(&e); err != nil {
				return err
			}
		}
		return nil
	}
	for msg, err := range s.scan(ctx, LaneName(lane), scanFrom{seq: max(from, 1), heads: true}) {
		if err != nil {
			return unavailable(fmt.Errorf("read the headers of lane %d: %w", lane, err), time.Second)
		}
		if msg.seq > to {
			break
		}
		if err := before(msg.seq); err != nil {
			return err
		}
		if len(redacted) > 0 && redacted[0] == msg.seq { // and is not deleted yet
			redacted = redacted[1:]
		}
		e := readEntry(lane, msg.seq, msg.at, msg.Subject(), msg.Headers(), nil)
		if err := f(&e); err != nil || msg.seq == to {
			return err
		}
	}
	return before(to + 1)
}

// age is the stream time between two messages of a lane. When the first is gone,
// it is longer than any caller asks for.
func (s *Stream) age(ctx context.Context, lane int, from, to uint64) (age time.Duration, err error) {
	before, found := time.Time{}, false
	err = s.Heads(ctx, lane, from, to, func(e *flow.Entry) error {
		switch {
		case e.Seq == from:
			found = true
		case found:
			age += flow.Step(before, e.Stored)
		}
		before = e.Stored
		return nil
	})
	if err == nil && !found {
		age = 1<<63 - 1
	}
	return age, err
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

// scanned is a message met by a scan.
type scanned struct {
	jetstream.Msg
	seq uint64
	at  time.Time // when the stream stored it
}

// scanPatience is how long a scan waits for a message before it asks whether
// there is one.
const scanPatience = time.Second

// scanFrom says what of a stream to scan; the zero value is all of it.
type scanFrom struct {
	subject string    // only under this one
	seq     uint64    // only from this sequence on
	since   time.Time // only from this time on; instead of seq
	heads   bool      // without the bodies
}

// scan gives the messages that a stream holds now, oldest first. For people and
// for rare questions: it stops at an error, and begins again from nothing. When
// the server that is read from has fallen behind the others, that is an error: who
// asks counts on all there is.
func (s *Stream) scan(ctx context.Context, stream string, from scanFrom) iter.Seq2[scanned, error] {
	return func(yield func(scanned, error) bool) {
		cfg := jetstream.ConsumerConfig{
			AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: readerIdle,
			FilterSubject: from.subject, HeadersOnly: from.heads,
		}
		switch {
		case !from.since.IsZero():
			cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &from.since
		case from.seq > 0:
			cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from.seq
		}
		handle, err := s.js.Stream(ctx, stream)
		if err != nil {
			yield(scanned{}, fmt.Errorf("read %s: %w", stream, err))
			return
		}
		end := handle.CachedInfo().State.LastSeq
		consumer, err := handle.CreateConsumer(ctx, cfg)
		if err != nil {
			yield(scanned{}, fmt.Errorf("read %s: %w", stream, err))
			return
		}
		info := consumer.CachedInfo()
		seen := info.Delivered.Stream // it begins behind it
		complete := func() {
			if err := seenAll(ctx, handle, from, seen, end); err != nil {
				yield(scanned{}, fmt.Errorf("read %s: %w", stream, err))
			}
		}
		defer func() {
			// It would go by itself after readerIdle.
			if err := s.js.DeleteConsumer(context.WithoutCancel(ctx), stream, info.Name); err != nil {
				s.log.Debug("delete the consumer of a scan", "stream", stream, "error", err)
			}
		}()
		if info.NumPending == 0 {
			complete()
			return
		}
		messages, err := consumer.Messages(
			jetstream.PullMaxMessagesWithBytesLimit(readAhead, leastAhead),
			jetstream.PullHeartbeat(readHeartbeat), jetstream.WithMessagesErrOnMissingHeartbeat(true))
		if err != nil {
			yield(scanned{}, fmt.Errorf("read %s: %w", stream, err))
			return
		}
		defer messages.Stop()
		var delivered uint64
		for {
			soon, cancel := context.WithTimeout(ctx, scanPatience)
			msg, err := messages.Next(jetstream.NextContext(soon))
			cancel()
			if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				// What was still to come may have been removed meanwhile.
				now, err := consumer.Info(ctx)
				if err == nil && now.NumPending == 0 && now.Delivered.Consumer == delivered {
					complete()
					return
				}
				continue
			}
			if err != nil {
				yield(scanned{}, fmt.Errorf("read %s: %w", stream, err))
				return
			}
			meta, err := msg.Metadata()
			if err == nil && meta.Sequence.Consumer != delivered+1 {
				err = fmt.Errorf("read %s: messages were lost on the way", stream)
			}
			if err != nil {
				yield(scanned{}, err)
				return
			}
			delivered++
			seen = meta.Sequence.Stream
			if !yield(scanned{Msg: msg, seq: seen, at: meta.Timestamp}, nil) {
				return
			}
			if meta.NumPending == 0 {
				complete()
				return
			}
		}
	}
}

// seenAll is an error when a stream has messages of a scan between the last one
// that was seen and the end, as its leader knows.
func seenAll(ctx context.Context, handle jetstream.Stream, from scanFrom, seen, end uint64) error {
	if seen >= end {
		return nil
	}
	next, err := handle.GetMsg(ctx, seen+1, jetstream.WithGetMsgSubject(cmp.Or(from.subject, ">")))
	if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && next.Sequence > end {
		return nil // they are under other subjects, or gone
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: message %d was not read", errSilent, next.Sequence)
}
