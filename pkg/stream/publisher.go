package stream

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/change"
	"sluice/pkg/flow"
)

// Publisher makes submissions durable.
type Publisher struct {
	stream *Stream
	sent   sent
	others *follower

	failed atomic.Pointer[failure] // nil while submissions become durable

	mu        sync.Mutex
	gatherers map[int]*gatherer // by lane
}

// failure is why a submission did not become durable.
type failure struct {
	at  time.Time
	err error
}

// failureCounts is how long a failure says something about now.
const failureCounts = 10 * time.Second

// Check says why nothing becomes durable at present, as far as the latest
// submission knows: NATS may answer, and yet have no room on its disk. It is
// for readiness.
func (p *Publisher) Check() error {
	if f := p.failed.Load(); f != nil && time.Since(f.at) < failureCounts {
		return f.err
	}
	return nil
}

// note remembers what became of a submission. One whose client has gone away,
// or that is refused for what it is, says nothing about the stream.
func (p *Publisher) note(ctx context.Context, err error) {
	switch {
	case err == nil:
		if p.failed.Load() != nil { // mostly it is not, and then nothing is written
			p.failed.Store(nil)
		}
	case errors.Is(err, flow.ErrUnavailable) && !errors.Is(ctx.Err(), context.Canceled):
		p.failed.Store(&failure{time.Now(), err})
	}
}

// NewPublisher returns a Publisher on s. It works while a caller waits for a
// submission, also when it does not run. While s runs, it hears at once when the
// connection is lost.
func NewPublisher(s *Stream) *Publisher {
	return &Publisher{stream: s, sent: sent{window: s.cfg.RepeatWindow}, others: newFollower(s), gatherers: map[int]*gatherer{}}
}

// Run follows what other publishers send, and what this one had sent before it was
// started, until ctx is done: Publish tells those who repeat it.
func (p *Publisher) Run(ctx context.Context) error {
	if err := p.stream.Opened(ctx); err != nil {
		return nil
	}
	failing := false
	for {
		err := p.others.follow(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			p.stream.log.Warn("requests of other apis cannot be followed", "error", err)
		}
		failing = err != nil
		if !sleep(ctx, p.stream.cfg.Poll) {
			return nil
		}
	}
}

// Slots is over how many lanes the records of a source are spread: a submission
// of it must be cut for as many. Its errors are those of Publish; it waits for a
// source that is first seen, and not for long.
func (p *Publisher) Slots(ctx context.Context, source string) (int, error) {
	if err := p.stream.ready(); err != nil {
		return 0, err
	}
	if known := p.stream.view.Load().sources[source]; known != nil && len(known.Lanes) > 0 {
		return len(known.Lanes), nil // Publish hears of it when that is old
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errLimit)
	defer cancel()
	a := p.attempts()
	slots := 0
	err := a.until(ctx, func() error {
		known, _, err := p.source(ctx, &a, source)
		if err == nil {
			slots = len(known.Lanes)
		}
		return err
	})
	p.note(ctx, err)
	return slots, err
}

// Publish makes a submission durable and returns when it is: without an error
// every piece is on disk in its lane; when Replayed, it was sent before. After an error
// some pieces may be, and none is taken back: the same submission again completes it,
// however it is cut then.
//
// A submission that is published twice is in the lanes twice. Their reader
// drops the second one, by its ID and Hash.
//
// Errors: flow.ErrFull, ErrBusy, ErrUnavailable, ErrHeld, ErrKeyReused,
// ErrTooLarge; a *flow.RetryError around them says when it is worth trying
// again. The bodies are not used after Publish returns.
func (p *Publisher) Publish(ctx context.Context, sub *flow.Submission) (flow.Receipt, error) {
	if err := p.stream.ready(); err != nil {
		return flow.Receipt{}, err
	}
	begun := time.Now()
	ctx, span := p.stream.publishing(ctx, sub.Source)
	receipt, err := p.publish(ctx, sub)
	p.note(ctx, err)
	p.stream.m.published(span, outcome(receipt, err), time.Since(begun))
	return receipt, err
}

func (p *Publisher) publish(ctx context.Context, sub *flow.Submission) (flow.Receipt, error) {
	pieces, err := pieces(sub)
	if err != nil {
		return flow.Receipt{}, err
	}
	durable, fresh, err := p.sent.begin(sub)
	if err != nil || durable {
		return flow.Receipt{Replayed: durable}, err
	}
	elsewhere := false
	if fresh && !sub.Unique {
		if elsewhere, err = p.others.knows(sub); err != nil {
			p.sent.forget(sub)
			return flow.Receipt{}, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, publishLimit, errLimit)
	defer cancel()
	sentSome, err := p.send(ctx, pieces)
	switch {
	case err == nil:
		p.sent.end(sub)
	case fresh && !sentSome && !errors.Is(err, flow.ErrUnavailable):
		p.sent.forget(sub)
	}
	return flow.Receipt{Replayed: elsewhere && err == nil}, err
}

// pieces are those of a submission as they go into entries.
func pieces(sub *flow.Submission) ([]*piece, error) {
	if !validID(sub.ID) {
		return nil, errors.New("publish: the submission's ID is empty, too long or not printable ASCII")
	}
	if names := len(sub.ID) + len(sub.Hash) + len(sub.Subject) + len(sub.Source) + len(sub.TraceParent); names > flow.EntryNameBytes {
		return nil, fmt.Errorf("%w: %d bytes of names", flow.ErrTooLarge, names)
	}
	if len(sub.Pieces) == 0 {
		return nil, errors.New("publish: the submission has no pieces")
	}
	slots, from := max(1, sub.Slots), 0
	all := make([]piece, len(sub.Pieces))
	list := make([]*piece, len(sub.Pieces))
	for i, p := range sub.Pieces {
		switch {
		case p.Slot < 0 || p.Slot >= slots || i > 0 && p.Slot < sub.Pieces[i-1].Slot:
			return nil, fmt.Errorf("publish: a piece of slot %d of %d is not in order", p.Slot, slots)
		case p.Records < 1:
			return nil, fmt.Errorf("publish: piece %d has no records", i)
		case len(p.Body)+headRoom > maxMessage:
			return nil, fmt.Errorf("%w: a piece of %d bytes", flow.ErrTooLarge, len(p.Body))
		case i > 0 && p.Slot > sub.Pieces[i-1].Slot:
			from = 0
		}
		all[i] = piece{slot: p.Slot, slots: slots, told: make(chan error, 1), message: flow.Message{
			ID: sub.ID, Hash: sub.Hash, Subject: sub.Subject, Source: sub.Source, Received: sub.Received, TraceParent: sub.TraceParent,
			Identified: sub.Identified, From: from, Records: p.Records, Body: p.Body, Encoding: p.Encoding,
		}}
		list[i] = &all[i]
		from += p.Records
	}
	return list, nil
}

// headRoom is more than the headers of a message take, and what a dead letter
// adds to them.
const headRoom = 64 << 10

// validID says whether an id can stand in a table, and be shown.
func validID(id string) bool {
	return id != "" && len(id) <= 256 && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' })
}

// send sends pieces of one source and waits until every one has an outcome. some
// says that one is durable.
func (p *Publisher) send(ctx context.Context, list []*piece) (some bool, err error) {
	begun := time.Now()
	for len(list) > 0 {
		a := p.attempts()
		a.since = begun
		if failed := a.until(ctx, func() error { return p.route(ctx, &a, list) }); failed != nil {
			if worse(failed, err) {
				err = failed
			}
			return some, err
		}
		for rest := list; len(rest) > 0; {
			n := 1
			for n < len(rest) && rest[n].lane == rest[0].lane {
				n++
			}
			p.gatherer(rest[0].lane.Number).add(rest[:n])
			rest = rest[n:]
		}
		anew := list[:0]
		for _, pc := range list {
			switch failed := p.wait(ctx, pc); {
			case failed == nil:
				some = true
			case errors.Is(failed, errAnew):
				anew = append(anew, pc)
			case worse(failed, err):
				err = failed
			}
		}
		list = anew
	}
	return some, err
}

// wait waits for the outcome of a piece, or until ctx ends.
func (p *Publisher) wait(ctx context.Context, pc *piece) error {
	select {
	case err := <-pc.told:
		return err
	case <-ctx.Done():
	}
	if p.gatherer(pc.lane.Number).leave(pc) {
		return &flow.RetryError{Err: fmt.Errorf("%w: %w", flow.ErrBusy, errNotSent), After: time.Second}
	}
	select {
	case err := <-pc.told: // it was known at the same moment
		if !errors.Is(err, errAnew) {
			return err
		}
		return &flow.RetryError{Err: fmt.Errorf("%w: %w", flow.ErrBusy, errNotSent), After: time.Second}
	default:
		return unavailable(fmt.Errorf("wait for the lane: %w", context.Cause(ctx)), 2*time.Second)
	}
}

// gatherer is where the pieces for a lane gather.
func (p *Publisher) gatherer(lane int) *gatherer {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.gatherers[lane]
	if g == nil {
		g = &gatherer{p: p, number: lane}
		p.gatherers[lane] = g
	}
	return g
}

// outcome labels what became of a submission.
func outcome(receipt flow.Receipt, err error) string {
	for _, class := range []struct {
		err  error
		name string
	}{
		{flow.ErrFull, "full"}, {flow.ErrBusy, "busy"}, {flow.ErrUnavailable, "unavailable"},
		{flow.ErrHeld, "held"}, {flow.ErrKeyReused, "key_reused"}, {flow.ErrTooLarge, "too_large"},
	} {
		if errors.Is(err, class.err) {
			return class.name
		}
	}
	switch {
	case err != nil:
		return "failed"
	case receipt.Replayed:
		return "replayed"
	}
	return "stored"
}

// PublishChange makes a change durable on lane 0, where it is applied in order
// with all others. It returns the change's sequence there, and whether it was
// there already under the same ID.
//
// Errors: change.ErrStale when c.Expected is not the last sequence of the
// target any more; flow.ErrFull, ErrBusy, ErrUnavailable and ErrTooLarge as
// for Publish.
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
	ctx, span := p.stream.publishing(ctx, "")
	if parent := parentOf(span); parent != "" {
		msg.Header[headerTrace] = []string{parent}
	}
	a, err := p.publishChange(ctx, msg, c)
	p.note(ctx, err)
	p.stream.m.published(span, outcome(flow.Receipt{Replayed: a.Duplicate}, err), time.Since(begun))
	if err == nil && !a.Duplicate {
		p.stream.m.messages.Inc()
		p.stream.m.bytes.Add(float64(len(body)))
	}
	return a.Sequence, a.Duplicate, err
}

// publishChange publishes until the outcome is known. Without an ID a second
// attempt might be a second change, so only what was certainly not stored is
// tried again.
func (p *Publisher) publishChange(ctx context.Context, msg *nats.Msg, c *change.Change) (got ack, err error) {
	lane, ok := p.stream.view.Load().lane(0)
	if !ok {
		return ack{}, unavailable(errors.New("lane 0 is missing"), 30*time.Second)
	}
	a := p.attempts()
	a.once = c.ID == ""
	a.full = func(err error) error {
		return &flow.RetryError{Err: err, After: p.stream.roomAfter(0, len(msg.Data)+headRoom)}
	}
	err = a.until(ctx, func() (err error) {
		got, err = p.stream.request(ctx, lane, msg)
		if isCode(err, codeWrongLastSequence, codeWrongLastSequenceR3) {
			got, err = p.stale(ctx, msg, c, err)
		}
		return err
	})
	return got, err
}

// stale is asked when a change came after another one than it expected: that may
// be this very change, of an attempt whose answer was lost. The lane looks at the
// sequence before it looks for duplicates. Only one change can have come right
// after the one that was expected.
func (p *Publisher) stale(ctx context.Context, msg *nats.Msg, c *change.Change, cause error) (ack, error) {
	if c.ID != "" && c.Expected != nil {
		ctx, done := p.stream.link.attempt(ctx, attemptLimit)
		defer done()
		next, err := p.stream.lane0.GetMsg(ctx, *c.Expected+1, jetstream.WithGetMsgSubject(msg.Subject))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound): // the target was never so far
		case err != nil:
			return ack{}, lost(ctx, err)
		case first(next.Header, headerID) == c.ID:
			return ack{Sequence: next.Sequence, Duplicate: true}, nil
		}
	}
	return ack{}, fmt.Errorf("%w: %w", change.ErrStale, cause)
}
