package stream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

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
// for rare questions: it stops at an error, and begins again from nothing.
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
		consumer, err := s.js.CreateConsumer(ctx, stream, cfg)
		if err != nil {
			yield(scanned{}, fmt.Errorf("read %s: %w", stream, err))
			return
		}
		info := consumer.CachedInfo()
		defer func() {
			// It would go by itself after readerIdle.
			if err := s.js.DeleteConsumer(context.WithoutCancel(ctx), stream, info.Name); err != nil {
				s.log.Debug("delete the consumer of a scan", "stream", stream, "error", err)
			}
		}()
		if info.NumPending == 0 {
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
			if !yield(scanned{Msg: msg, seq: meta.Sequence.Stream, at: meta.Timestamp}, nil) || meta.NumPending == 0 {
				return
			}
		}
	}
}
