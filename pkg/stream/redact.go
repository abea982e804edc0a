package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// Redaction is what is to be taken out of one message of a lane.
type Redaction struct {
	Receipt   string                                // of what is forgotten
	Forgotten flow.Forgotten                        // records that were stored or repeated
	Records   int                                   // all of them, those included that cannot be stored
	Forget    func(m *flow.Message, index int) bool // as flow.Entry.Redact asks
}

// CanRedact fails when messages of a lane cannot be deleted.
func (s *Stream) CanRedact(ctx context.Context, lane int) error {
	handle, err := s.handle(ctx, lane)
	if err != nil {
		return err
	}
	info, err := handle.Info(ctx)
	if err != nil {
		return unavailable(fmt.Errorf("look up lane %d: %w", lane, err), 2*time.Second)
	}
	if info.Config.DenyDelete {
		return fmt.Errorf("lane %d forbids to delete messages, which NATS cannot take back: its stream was made by an earlier version (deny_delete); records that it still holds can be forgotten after it was made again, see docs/retention.md", lane)
	}
	return nil
}

// Redact takes records out of a stored message of a lane, which others go on
// reading in its place: what is left of it is kept beside the lane first, and then
// it is deleted there and its bytes are written over. It may be repeated, with the
// same records or with others.
func (s *Stream) Redact(ctx context.Context, e *flow.Entry, r Redaction) error {
	lane, err := s.state(ctx, e.Lane)
	if err != nil {
		return err
	}
	raw, err := s.readRedacted(ctx, lane, e.Seq)
	original := errors.Is(err, jetstream.ErrMsgNotFound)
	if original {
		raw, err = s.message(ctx, e.Lane, e.Seq)
	}
	if err != nil {
		return unavailable(fmt.Errorf("read message %d of lane %d: %w", e.Seq, e.Lane, err), 2*time.Second)
	}
	table, body, err := record.Redact(e, r.Forget)
	if err != nil {
		return err
	}
	head := nats.Header{}
	for name, values := range raw.Header {
		if name != headerID { // it is another message of another stream
			head[name] = values
		}
	}
	if table != "" {
		head[headerEntry] = []string{table}
	}
	if original {
		head[headerStored] = []string{strconv.FormatInt(raw.Time.UnixNano(), 10)}
	}
	head[headerForgotten] = []string{e.Forgotten.With(r.Forgotten).Text()}
	head[headerReceipts] = []string{strings.TrimSpace(first(head, headerReceipts) + " " + r.Receipt + "=" + strconv.Itoa(r.Records))}
	subject := redactedSubject(lane, e.Seq)
	ack, err := s.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Header: head, Data: body})
	if err != nil {
		_, _, answer := judge(err)
		return fmt.Errorf("keep what is left of message %d of lane %d: %w", e.Seq, e.Lane, answer)
	}
	// Kept. A crash here leaves both, and readers take the newest.
	return s.erase(ctx, lane, e.Seq, ack.Sequence)
}

// erase deletes a message of a lane, and what was kept of it before the message
// number of the stream of what is left.
func (s *Stream) erase(ctx context.Context, lane *Lane, seq, number uint64) error {
	for {
		older, err := s.redacted.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(redactedSubject(lane, seq)))
		if err != nil {
			return unavailable(fmt.Errorf("look for what was kept of message %d of lane %d before: %w", seq, lane.Number, err), 2*time.Second)
		}
		if older.Sequence >= number {
			break
		}
		if err := s.secureDelete(ctx, s.redacted, older.Sequence); err != nil {
			return err
		}
	}
	handle, err := s.handle(ctx, lane.Number)
	if err != nil {
		return err
	}
	return s.secureDelete(ctx, handle, seq)
}

// secureDelete deletes a message, whose bytes the server writes over.
func (s *Stream) secureDelete(ctx context.Context, from jetstream.Stream, seq uint64) error {
	err := from.SecureDeleteMsg(ctx, seq)
	if err == nil {
		return nil
	}
	if _, gone := from.GetMsg(ctx, seq); errors.Is(gone, jetstream.ErrMsgNotFound) {
		return nil // in an attempt whose answer was lost
	}
	return unavailable(fmt.Errorf("delete message %d of %s: %w", seq, from.CachedInfo().Config.Name, err), 2*time.Second)
}

// FinishRedactions deletes messages that were redacted and are still there, as an
// interruption of Redact leaves them.
func (s *Stream) FinishRedactions(ctx context.Context) error {
	for _, number := range s.LaneNumbers() {
		lane, err := s.state(ctx, number)
		if err != nil {
			return err
		}
		all, err := s.redactedFrom(ctx, lane, 1)
		if err != nil {
			return err
		}
		for _, seq := range all {
			kept, err := s.readRedacted(ctx, lane, seq)
			if err != nil {
				return unavailable(err, 2*time.Second)
			}
			if err := s.erase(ctx, lane, seq, kept.Sequence); err != nil {
				return err
			}
		}
	}
	return nil
}

// Redacted counts the messages that a receipt has taken records of, and these records,
// as far as the lanes keep them.
func (s *Stream) Redacted(ctx context.Context, receipt string) (messages, records int, err error) {
	for msg, err := range s.scan(ctx, RedactedStream, scanFrom{subject: RedactedPrefix + ">", heads: true}) {
		if err != nil {
			return 0, 0, unavailable(err, 2*time.Second)
		}
		some := 0
		for of := range strings.FieldsSeq(first(msg.Headers(), headerReceipts)) {
			if id, count, _ := strings.Cut(of, "="); id == receipt {
				n, _ := strconv.Atoi(count) // ours
				some += n
			}
		}
		if some > 0 {
			messages, records = messages+1, records+some
		}
	}
	return messages, records, nil
}

func redactedSubject(lane *Lane, seq uint64) string {
	return redactedLane(lane) + strconv.FormatUint(seq, 10)
}

func redactedLane(lane *Lane) string {
	return RedactedPrefix + strconv.Itoa(lane.Number) + "." + strconv.FormatInt(lane.Created.UnixNano(), 10) + "."
}

// redactedFrom are the messages of a lane from one on that were redacted, in order.
func (s *Stream) redactedFrom(ctx context.Context, lane *Lane, from uint64) (all []uint64, err error) {
	prefix := redactedLane(lane)
	info, err := s.redacted.Info(ctx, jetstream.WithSubjectFilter(prefix+"*"))
	if err != nil {
		return nil, unavailable(fmt.Errorf("look which messages of lane %d were redacted: %w", lane.Number, err), 2*time.Second)
	}
	for subject := range info.State.Subjects {
		seq, err := strconv.ParseUint(strings.TrimPrefix(subject, prefix), 10, 64)
		if err == nil && seq >= from {
			all = append(all, seq)
		}
	}
	slices.Sort(all)
	return all, nil
}

// redactedAsked is how long a lane that is whole waits for an answer.
const redactedAsked = time.Second

// redactedIfKnown is redactedFrom for a lane as it is now. One that lacks nothing is
// read as it is when the servers of the other stream do not answer: a redaction that
// has gone no further than that stream will be finished.
func (s *Stream) redactedIfKnown(ctx context.Context, lane *Lane, from uint64) ([]uint64, error) {
	if lane.Deleted > 0 || lane.First > from {
		return s.redactedFrom(ctx, lane, from)
	}
	asked, cancel := context.WithTimeout(ctx, redactedAsked)
	defer cancel()
	all, err := s.redactedFrom(asked, lane, from)
	if err != nil && ctx.Err() == nil {
		s.log.Debug("reading a lane as it is", "lane", lane.Number, "error", err)
		return nil, nil
	}
	return all, err
}

// readRedacted is what is left of a message. The error is that of JetStream.
func (s *Stream) readRedacted(ctx context.Context, lane *Lane, seq uint64) (*jetstream.RawStreamMsg, error) {
	return s.redacted.GetLastMsgForSubject(ctx, redactedSubject(lane, seq))
}

// redactedEntry is what is left of a message, as the lane would give it. The error
// is jetstream.ErrMsgNotFound when it was not redacted, or is purged.
func (s *Stream) redactedEntry(ctx context.Context, lane *Lane, seq uint64) (flow.Entry, error) {
	msg, err := s.readRedacted(ctx, lane, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return flow.Entry{}, err
	}
	if err != nil {
		return flow.Entry{}, unavailable(fmt.Errorf("read what is left of message %d of lane %d: %w", seq, lane.Number, err), time.Second)
	}
	at := msg.Time
	if ns, err := strconv.ParseInt(first(msg.Header, headerStored), 10, 64); err == nil {
		at = time.Unix(0, ns).UTC()
	}
	e := readEntry(lane.Number, seq, at, RecordTopic(lane.Number), msg.Header, msg.Data)
	if e.Forgotten, err = flow.ParseForgotten(first(msg.Header, headerForgotten)); err != nil {
		return flow.Entry{}, fmt.Errorf("message %d of lane %d: %w", seq, lane.Number, err)
	}
	return e, nil
}

// RedactedBefore calls f with what is left of messages that a lane does not begin
// with any more only because they were redacted.
func (s *Stream) RedactedBefore(ctx context.Context, number int, f func(*flow.Entry) error) error {
	lane, err := s.state(ctx, number)
	if err != nil {
		return err
	}
	all, err := s.redactedFrom(ctx, lane, 1)
	for _, seq := range all {
		if err != nil || seq >= lane.First {
			break
		}
		var e flow.Entry
		if e, err = s.redactedEntry(ctx, lane, seq); errors.Is(err, jetstream.ErrMsgNotFound) {
			err = nil // purged meanwhile
		} else if err == nil {
			err = f(&e)
		}
	}
	return err
}

// Entry reads one message of a lane, redacted or not; ok is false when it is
// purged.
func (s *Stream) Entry(ctx context.Context, number int, seq uint64) (e flow.Entry, ok bool, err error) {
	lane, err := s.state(ctx, number)
	if err != nil {
		return e, false, err
	}
	e, err = s.redactedEntry(ctx, lane, seq)
	if !errors.Is(err, jetstream.ErrMsgNotFound) {
		return e, err == nil, err
	}
	msg, err := s.message(ctx, number, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return e, false, nil
	}
	if err != nil {
		return e, false, unavailable(fmt.Errorf("read message %d of lane %d: %w", seq, number, err), time.Second)
	}
	return readEntry(number, seq, msg.Time, msg.Subject, msg.Header, msg.Data), true, nil
}

// forgetRedacted drops what was kept of messages of a lane before keep, and of
// those of an earlier stream of that number.
func (s *Stream) forgetRedacted(ctx context.Context, lane *Lane, keep uint64) error {
	info, err := s.redacted.Info(ctx, jetstream.WithSubjectFilter(RedactedPrefix+strconv.Itoa(lane.Number)+".>"))
	if err != nil {
		return unavailable(fmt.Errorf("look up redacted messages: %w", err), 2*time.Second)
	}
	for subject := range info.State.Subjects {
		text, of := strings.CutPrefix(subject, redactedLane(lane))
		seq, err := strconv.ParseUint(text, 10, 64)
		if of && err == nil && seq >= keep {
			continue
		}
		if err := s.redacted.Purge(ctx, jetstream.WithPurgeSubject(subject)); err != nil {
			return unavailable(fmt.Errorf("drop what was left of a redacted message: %w", err), 2*time.Second)
		}
	}
	return nil
}
