package stream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/broker"
	"sluice/pkg/change"
	"sluice/pkg/flow"
)

// PublishChange makes a change durable on lane 0, where changes are applied in order. It
// returns the change's sequence, and whether the lane already had it under this ID.
//
// Errors: change.ErrStale if c.Expected is not the last sequence of the target; flow.ErrFull,
// ErrBusy, ErrUnavailable, and ErrTooLarge as for Publish.
func (p *Publisher) PublishChange(ctx context.Context, c *change.Change) (seq uint64, duplicate bool, err error) {
	if err := p.stream.ready(); err != nil {
		return 0, false, err
	}
	body, err := c.Encode()
	if err != nil {
		return 0, false, fmt.Errorf("encode change: %w", err)
	}
	msg := &nats.Msg{Subject: ChangePrefix + c.Target.Key(), Data: body, Header: nats.Header{
		headerReceived: {strconv.FormatInt(c.At.UnixMilli(), 10)},
		headerSubject:  {c.By},
	}}
	if c.ID != "" {
		msg.Header[headerID] = []string{c.ID}
	}
	if c.Expected != nil {
		msg.Header[headerExpectedSubjectSeq] = []string{strconv.FormatUint(*c.Expected, 10)}
	}
	if len(body)+headRoom > maxMessage {
		return 0, false, fmt.Errorf("%w: a change of %d bytes", flow.ErrTooLarge, len(body))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, publishLimit, errLimit)
	defer cancel()
	begun := time.Now()
	a, err := p.publishChange(ctx, msg, c)
	err = p.stream.explained(err)
	p.note(ctx, err)
	p.stream.m.published(outcome(flow.Receipt{Replayed: a.Duplicate}, err), time.Since(begun))
	if err == nil && !a.Duplicate {
		p.stream.m.messages.Inc()
		p.stream.m.bytes.Add(float64(len(body)))
	}
	return a.Sequence, a.Duplicate, err
}

// publishChange publishes until the outcome is known. Without an ID a second attempt might be
// a second change, so it retries only if nothing was stored for certain.
func (p *Publisher) publishChange(ctx context.Context, msg *nats.Msg, c *change.Change) (got ack, err error) {
	lane, ok := p.stream.view.Load().lane(0)
	if !ok {
		return ack{}, unavailable(errors.New("lane 0 is missing"), 30*time.Second)
	}
	a := p.attempts()
	a.once = c.ID == ""
	err = a.until(ctx, func() (err error) {
		got, err = a.send(ctx, p.stream, lane, msg)
		if isCode(err, codeWrongLastSequence, codeWrongLastSequenceR3) {
			got, err = p.stale(ctx, msg, c, err)
		}
		return err
	})
	return got, p.stream.whenFull(err, 0, len(msg.Data)+headRoom)
}

// stale handles a change that did not follow its expected sequence. It may be this very change,
// whose earlier answer was lost: the lane checks the sequence before it deduplicates. Only one
// change can directly follow the expected one.
func (p *Publisher) stale(ctx context.Context, msg *nats.Msg, c *change.Change, cause error) (ack, error) {
	if c.ID != "" && c.Expected != nil {
		ctx, done := p.stream.link.attempt(ctx, attemptLimit)
		defer done()
		next, err := p.stream.js.Get(ctx, LaneName(0), *c.Expected+1, msg.Subject)
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound): // the target never reached it
		case err != nil:
			return ack{}, lossCause(ctx, err)
		case first(next.Header, headerID) == c.ID:
			return ack{Sequence: next.Sequence, Duplicate: true}, nil
		}
	}
	return ack{}, fmt.Errorf("%w: %w", change.ErrStale, cause)
}

// LastChange returns the last change of a target in lane 0, and the place that an entry with
// it must have reached. Changes skipped by a reset of the lane are never applied, nor awaited.
func (s *Stream) LastChange(ctx context.Context, target change.Target) (change.Last, error) {
	if err := s.ready(); err != nil {
		return change.Last{}, err
	}
	ctx, done := s.link.attempt(ctx, attemptLimit)
	defer done()
	msg, err := s.js.Last(ctx, LaneName(0), ChangePrefix+target.Key())
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return change.Last{}, nil
	}
	if err != nil {
		return change.Last{}, unavailable(fmt.Errorf("last change of a target: %w", err), 2*time.Second)
	}
	pos, err := NewChangeStates(s).entry(ctx, 0)
	if err != nil {
		return change.Last{}, err
	}
	last := change.Last{Seq: msg.Sequence, Unread: pos.Incarnation() == 0}
	if !last.Unread && msg.Sequence > pos.Base() {
		last.Applied = change.Place{Incarnation: pos.IncarnationOf(msg.Sequence), Seq: msg.Sequence}
	}
	return last, nil
}

// nextChange is the first change of lane 0 from a sequence on, 0 if none.
func (s *Stream) nextChange(ctx context.Context, from uint64) (uint64, error) {
	msg, err := s.js.Get(ctx, LaneName(0), max(from, 1), ChangePrefix+">")
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, unavailable(fmt.Errorf("look for changes behind message %d of lane 0: %w", from-1, err), 2*time.Second)
	}
	return msg.Sequence, nil
}

// ChangeLag is the lag of applying changes of users and dataset fields.
type ChangeLag struct {
	Done    uint64 // every change of lane 0 up to this message is applied or dead-lettered
	Next    uint64 // the first one of the backlog, 0 if none
	Waiting uint64 // number of changes in the backlog
}

// ChangeLag looks up the lag of changes, and sets the metric.
func (s *Stream) ChangeLag(ctx context.Context) (l ChangeLag, err error) {
	lane, err := s.state(ctx, 0)
	if err != nil {
		return ChangeLag{}, err
	}
	pos, err := NewChangeStates(s).fitting(ctx, lane)
	if err != nil {
		return ChangeLag{}, err
	}
	l.Done = pos.Done
	if l.Next, err = s.nextChange(ctx, l.Done+1); err != nil {
		return ChangeLag{}, err
	}
	if l.Next > 0 {
		if l.Waiting, err = s.countChanges(ctx, l.Next); err != nil {
			return ChangeLag{}, err
		}
	}
	s.m.changesBacklog.Set(float64(l.Waiting))
	return l, nil
}

// countChanges counts the changes of lane 0 from a sequence on, by opening a reading without
// using it.
func (s *Stream) countChanges(ctx context.Context, from uint64) (uint64, error) {
	reading, err := s.js.Read(ctx, LaneName(0), broker.From{Seq: from, Subject: ChangePrefix + ">"})
	if err != nil {
		return 0, unavailable(fmt.Errorf("count the changes of lane 0 from message %d: %w", from, err), 2*time.Second)
	}
	reading.Stop()
	_, pending := reading.Begun()
	return pending, nil
}
