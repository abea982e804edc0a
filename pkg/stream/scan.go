package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/broker"
	"sluice/pkg/flow"
)

// Heads calls f with the messages of a lane in a range, as far as it still holds them, in order and without bodies.
func (s *Stream) Heads(ctx context.Context, lane int, from, to uint64, f func(*flow.Entry) error) error {
	if from > to {
		return nil
	}
	if from == to { // a consumer costs more than the body
		msg, err := s.message(ctx, lane, from)
		if err == nil {
			e := readEntry(lane, from, msg.Time, msg.Subject, msg.Header, msg.Data)
			return f(&e)
		}
		if !errors.Is(err, jetstream.ErrMsgNotFound) {
			return unavailable(fmt.Errorf("read message %d of lane %d: %w", from, lane, err), time.Second)
		}
		// A former leader may answer that it lacks it; only the current one makes the consumer.
	}
	for msg, err := range s.scan(ctx, LaneName(lane), broker.From{Seq: max(from, 1), Heads: true}) {
		if err != nil {
			return unavailable(fmt.Errorf("read the headers of lane %d: %w", lane, err), time.Second)
		}
		if msg.Seq > to {
			break
		}
		e := readEntry(lane, msg.Seq, msg.At, msg.Subject, msg.Header, nil)
		if err := f(&e); err != nil || msg.Seq == to {
			return err
		}
	}
	return nil
}

// age is the stream time between two messages of a lane. If the first is gone it is longer than any limit.
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

// scanPatience is the wait for a message after which a scan asks for the remaining number, and
// scanWaits how often it asks in a row: a consumer is lost with its server, though the connection
// to another one lasts.
const (
	scanPatience = time.Second
	scanWaits    = 15
)

// scan iterates over the present messages of a stream, oldest first, and ends at the first error.
// A lagging server is an error: callers need all messages.
func (s *Stream) scan(ctx context.Context, stream string, from broker.From) iter.Seq2[broker.Message, error] {
	return func(yield func(broker.Message, error) bool) {
		fail := func(err error) { yield(broker.Message{}, fmt.Errorf("read %s: %w", stream, err)) }
		info, err := s.js.Info(ctx, stream, "")
		if err != nil {
			fail(err)
			return
		}
		end := info.State.LastSeq
		reading, err := s.js.Read(ctx, stream, from)
		if err != nil {
			fail(err)
			return
		}
		defer reading.Stop()
		defer s.link.onLoss(reading.Stop)()
		seen, pending := reading.Begun()
		for sent, waits := uint64(0), 0; pending > 0; {
			soon, cancel := context.WithTimeout(ctx, scanPatience)
			msg, err := reading.Next(soon)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				// The remaining messages may have been removed meanwhile.
				left, given, lost := reading.Left(ctx)
				if lost == nil && left == 0 && given == sent {
					break
				}
				if waits++; waits < scanWaits && !errors.Is(lost, jetstream.ErrConsumerNotFound) {
					continue
				}
				err = fmt.Errorf("the consumer is silent: %w", cmp.Or(lost, errSilent))
			}
			if err == nil && msg.Number != sent+1 {
				err = errors.New("messages were lost in transit")
			}
			if err != nil { // connection or server lost
				fail(unavailable(err, time.Second))
				return
			}
			sent, waits = sent+1, 0
			seen, pending = msg.Seq, msg.Pending
			if !yield(msg, nil) {
				return
			}
		}
		if err := s.seenAll(ctx, stream, from.Subject, seen, end); err != nil {
			fail(err)
		}
	}
}

// seenAll fails if, by the leader, the stream has messages of a scan after the last one seen.
func (s *Stream) seenAll(ctx context.Context, stream, subject string, seen, end uint64) error {
	if seen >= end {
		return nil
	}
	next, err := s.js.Get(ctx, stream, seen+1, cmp.Or(subject, ">"))
	if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && next.Sequence > end {
		return nil // they have other subjects, or are gone
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: message %d was not read", errSilent, next.Sequence)
}

var errSilent = fmt.Errorf("%w: the server of the consumer lags behind the others", flow.ErrUnavailable)

// first is the first value of a header, its name as written.
func first(head nats.Header, name string) string {
	if v := head[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}
