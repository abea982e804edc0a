package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sluice/pkg/flow"
)

// Publisher makes submissions durable.
type Publisher struct {
	stream   *Stream
	requests requestCache

	failed atomic.Pointer[failure] // nil while publishes succeed

	mu       sync.Mutex
	batchers map[int]*batcher // by lane
}

// NewPublisher returns a Publisher on s, whose Run detects lost connections.
func NewPublisher(s *Stream) *Publisher {
	return &Publisher{stream: s, requests: requestCache{clock: s.cfg.Now, window: s.cfg.RepeatWindow}, batchers: map[int]*batcher{}}
}

// Publish makes a submission durable: without an error every chunk is on disk in its lane, at
// the receipt's places. Replayed means that this process published it before, and the lanes
// still hold it. After an error some chunks may be durable, or become so later: publishing the
// same submission again completes it, however it is then cut.
//
// A submission published by two apis is in the lanes twice. The ingester drops the second, by
// ID and Hash.
//
// Errors: flow.ErrFull, ErrBusy, ErrUnavailable (and ErrDiskFull), ErrHeld, ErrKeyReused,
// ErrTooLarge, and those of Cut; a *flow.RetryError around them says when to retry. The records
// are not used after Publish returns.
func (p *Publisher) Publish(ctx context.Context, sub *flow.Submission) (flow.Receipt, error) {
	if err := p.stream.ready(); err != nil {
		return flow.Receipt{}, err
	}
	begun := time.Now()
	receipt, err := p.publish(ctx, sub)
	err = p.stream.explained(err)
	p.note(ctx, err)
	p.stream.m.published(outcome(receipt, err), time.Since(begun))
	return receipt, err
}

func (p *Publisher) publish(ctx context.Context, sub *flow.Submission) (flow.Receipt, error) {
	if err := check(sub); err != nil {
		return flow.Receipt{}, err
	}
	if end, limited := ctx.Deadline(); !limited || time.Until(end) > publishLimit {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, publishLimit, errLimit)
		defer cancel()
	}
	for {
		r := p.requests.find(sub)
		known := r != nil
		if !known {
			var err error
			if r, known, err = p.take(ctx, sub); err != nil {
				return flow.Receipt{}, err
			}
		}
		if known {
			if receipt, answered, err := p.repeat(ctx, sub, r); answered || err != nil {
				return receipt, err
			}
			continue // it was forgotten
		}
		places, some, err := r.wait(ctx)
		p.requests.finish(sub, r, places, some, err)
		if err != nil {
			return flow.Receipt{}, err
		}
		return flow.Receipt{Places: places}, nil
	}
}

// repeat answers a known request: Replayed, or flow.ErrKeyReused for another body, but only
// after the lanes were seen to hold every message sent for it. A lane can be set back to a
// backup and be filled beyond its former end, under the same name and connection; then the
// request is forgotten, answered is false, and it must be sent.
func (p *Publisher) repeat(ctx context.Context, sub *flow.Submission, r *request) (receipt flow.Receipt, answered bool, err error) {
	other := r.hash != hashOf(sub)
	places, some, err := r.wait(ctx)
	if err != nil {
		if other && r.failed() {
			err = nil // the other body is not stored
		}
		return flow.Receipt{}, false, err
	}
	for _, place := range places {
		held, err := p.holds(ctx, place)
		if err != nil {
			return flow.Receipt{}, false, err
		}
		if !held {
			p.requests.replace(sub, r, nil)
			return flow.Receipt{}, false, nil
		}
	}
	p.requests.finish(sub, r, places, some, nil)
	if other {
		return flow.Receipt{}, true, flow.ErrKeyReused
	}
	return flow.Receipt{Replayed: true, Places: places}, true, nil
}

// holds reports whether a lane holds a message, retrying until a server answers.
func (p *Publisher) holds(ctx context.Context, place flow.Place) (held bool, err error) {
	a := p.attempts()
	err = a.until(ctx, func() (err error) {
		held, err = p.stream.holds(ctx, place)
		return err
	})
	return held, err
}

// check refuses names that do not fit into a table.
func check(sub *flow.Submission) error {
	if sub.ID == "" || len(sub.ID) > 256 || strings.ContainsFunc(sub.ID, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("publish: the submission's ID is empty, too long or not printable ASCII")
	}
	if names := len(sub.ID) + len(sub.Hash) + len(sub.Subject) + len(sub.Source) + len(sub.TraceParent); names > flow.EntryNameBytes {
		return fmt.Errorf("%w: %d bytes of names", flow.ErrTooLarge, names)
	}
	return nil
}

// take cuts a submission for the lanes of its source and adds its chunks to their next entries.
// known: another call took it first.
func (p *Publisher) take(ctx context.Context, sub *flow.Submission) (taken *request, known bool, err error) {
	source, v, err := p.route(ctx, sub.Source)
	if err != nil {
		return nil, false, err
	}
	chunks, err := sub.Records.Cut(len(source.Lanes))
	if err == nil {
		err = checkChunks(chunks, len(source.Lanes))
	}
	if err == nil && ctx.Err() != nil { // after a pause of this process the client may have retried elsewhere
		err = &flow.RetryError{Err: fmt.Errorf("%w: timed out before it was sent", flow.ErrBusy), After: time.Second}
	}
	if err != nil {
		return nil, false, err
	}
	return p.requests.take(sub, func() ([]*batch, error) { return p.add(sub, source, v, chunks) })
}

func checkChunks(chunks []flow.Chunk, lanes int) error {
	if len(chunks) == 0 {
		return errors.New("publish: the submission has no chunks")
	}
	before := 0
	for i, c := range chunks {
		switch {
		case c.Lane < before || c.Lane >= lanes:
			return fmt.Errorf("publish: chunk %d, of lane %d of %d, is out of order", i, c.Lane, lanes)
		case c.Records < 1:
			return fmt.Errorf("publish: chunk %d has no records", i)
		case len(c.Body)+headRoom > maxMessage:
			return fmt.Errorf("%w: a chunk of %d bytes", flow.ErrTooLarge, len(c.Body))
		}
		before = c.Lane
	}
	return nil
}

// headRoom is above the size of a message's headers and of those that a dead letter adds.
const headRoom = 64 << 10

// add copies all chunks into the next entries of their lanes, or none if a lane is full.
func (p *Publisher) add(sub *flow.Submission, source *Source, v *view, chunks []flow.Chunk) (all []*batch, err error) {
	for _, c := range chunks {
		if p.batcher(source.Lanes[c.Lane]).full() {
			return nil, &flow.RetryError{Err: fmt.Errorf("%w: lane %d has %d bytes queued", flow.ErrBusy, source.Lanes[c.Lane], maxQueued), After: time.Second}
		}
	}
	for len(chunks) > 0 {
		n := 1
		for n < len(chunks) && chunks[n].Lane == chunks[0].Lane {
			n++
		}
		lane, _ := v.lane(source.Lanes[chunks[0].Lane])
		all = append(all, p.batcher(lane.Number).add(sub, source, lane, p.stream.until(v), chunks[:n])...)
		chunks = chunks[n:]
	}
	return all, nil
}

func (p *Publisher) batcher(lane int) *batcher {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.batchers[lane]
	if q == nil {
		q = &batcher{p: p, lane: lane}
		p.batchers[lane] = q
	}
	return q
}

// route returns the lanes of a source and the known lanes, from a recent look-up. A new source
// gets its lanes.
func (p *Publisher) route(ctx context.Context, name string) (source *Source, v *view, err error) {
	v = p.stream.view.Load()
	if source = v.sources[name]; source == nil || !v.has(source.Lanes) || passed(p.stream.cfg.Now(), p.stream.until(v)) {
		ctx, cancel := context.WithTimeoutCause(ctx, patience, errLimit)
		defer cancel()
		a := p.attempts()
		err = a.until(ctx, func() (err error) {
			source, v, err = p.stream.lookUpRoute(ctx, name)
			return err
		})
	}
	if err == nil {
		err = source.usable()
	}
	return source, v, err
}

// failure is a failed submission.
type failure struct {
	at  time.Time
	err error
}

// failureCounts is how long a failure counts for Check.
const failureCounts = 10 * time.Second

// Check fails while the latest submissions show that nothing becomes durable, for readiness:
// NATS may answer, yet have a full disk.
func (p *Publisher) Check() error {
	if f := p.failed.Load(); f != nil && p.stream.cfg.Now().Sub(f.at) < failureCounts {
		return f.err
	}
	return nil
}

// note records the outcome of a submission for Check. A cancelled or invalid one says nothing
// about the stream.
func (p *Publisher) note(ctx context.Context, err error) {
	switch {
	case err == nil:
		if p.failed.Load() != nil { // avoids a write in the usual case
			p.failed.Store(nil)
		}
	case errors.Is(err, flow.ErrUnavailable) && !errors.Is(ctx.Err(), context.Canceled):
		p.failed.Store(&failure{p.stream.cfg.Now(), err})
	}
}

// outcome is the label of a finished submission.
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
