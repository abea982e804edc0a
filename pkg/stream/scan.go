package stream

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/flow"
)

// Heads calls f with the messages of a lane from one to another, as many as it
// still holds and in order, with what their headers say and without their bodies.
func (s *Stream) Heads(ctx context.Context, lane int, from, to uint64, f func(*flow.Entry) error) error {
	if from > to {
		return nil
	}
	if from == to { // a consumer would cost more than the body
		msg, err := s.message(ctx, lane, from)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return unavailable(fmt.Errorf("read message %d of lane %d: %w", from, lane, err), time.Second)
		}
		e := readEntry(lane, from, msg.Time, msg.Subject, msg.Header, msg.Data)
		return f(&e)
	}
	for msg, err := range s.scan(ctx, LaneName(lane), scanFrom{seq: max(from, 1), heads: true}) {
		if err != nil {
			return unavailable(fmt.Errorf("read the headers of lane %d: %w", lane, err), time.Second)
		}
		if msg.seq > to {
			break
		}
		e := readEntry(lane, msg.seq, msg.at, msg.Subject(), msg.Headers(), nil)
		if err := f(&e); err != nil || msg.seq == to {
			return err
		}
	}
	return nil
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

// first is the first value of a header, its name as written.
func first(head nats.Header, name string) string {
	if v := head[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}
