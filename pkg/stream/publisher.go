package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/pkg/record"
)

// Publisher makes submissions durable.
type Publisher struct {
	stream *Stream
	wire   *wire

	failed atomic.Pointer[failure] // nil while submissions become durable

	mu     sync.Mutex
	groups map[int]*group        // by lane
	direct map[int]chan struct{} // by lane: slots for commits outside of the group
}

// directInFlight is how many commits of one lane go beside its group at a
// time: enough for the disk to overlap them, far from what a lane buffers.
const directInFlight = 16

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
		if p.failed.Load() != nil { // mostly it is not, and then nobody writes
			p.failed.Store(nil)
		}
	case errors.Is(err, record.ErrUnavailable) && !errors.Is(ctx.Err(), context.Canceled):
		p.failed.Store(&failure{time.Now(), err})
	}
}

// NewPublisher returns a Publisher on s. It has nothing to run or to stop: the
// submissions themselves commit each other. While s runs, it hears at once when
// the connection is lost.
func NewPublisher(s *Stream) *Publisher {
	return &Publisher{
		stream: s,
		wire:   &wire{nc: s.nc, link: s.link, m: s.m},
		groups: map[int]*group{},
		direct: map[int]chan struct{}{},
	}
}

// Slots is over how many lanes the records of a source are spread: a submission
// of it must be cut for as many. Its errors are those of Publish; it waits for a
// source that is first seen, and not for long.
func (p *Publisher) Slots(ctx context.Context, source string) (int, error) {
	if known := p.stream.view.Load().sources[source]; known != nil && len(known.Lanes) > 0 {
		return len(known.Lanes), nil // Publish hears of it when that is old
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errLimit)
	defer cancel()
	s := &settling{p: p, source: source}
	slots := 0
	err := s.retry(ctx, func() error {
		if !p.wire.link.up() {
			return nats.ErrConnectionReconnecting
		}
		known, _, err := s.lanes(ctx)
		if err == nil {
			slots = len(known.Lanes)
		}
		return err
	})
	p.note(ctx, err)
	return slots, err
}

// Publish makes a submission durable and returns when it is: without an error
// every part is on disk in its lane, now or, when Replayed, all since an earlier
// time. What goes to one lane is stored whole or not at all; after an error,
// what goes to another lane may be.
//
// Errors: record.ErrFull, ErrBusy, ErrUnavailable, ErrHeld, ErrKeyReused,
// ErrTooLarge; a *record.RetryError around them says when it is worth trying
// again. After ErrUnavailable the submission may be durable or not: sending it
// again with the same ID settles it. The bodies are not used after Publish
// returns.
func (p *Publisher) Publish(ctx context.Context, sub *record.Submission) (record.Receipt, error) {
	begun := time.Now()
	receipt, err := p.publish(ctx, sub)
	p.note(ctx, err)
	m := p.stream.m
	m.seconds.Observe(time.Since(begun).Seconds())
	m.publishes.WithLabelValues(outcome(receipt, err)).Inc()
	return receipt, err
}

func (p *Publisher) publish(ctx context.Context, sub *record.Submission) (record.Receipt, error) {
	if !validID(sub.ID) {
		return record.Receipt{}, errors.New("publish: the submission's ID is empty, too long or not printable ASCII")
	}
	if len(sub.Parts) == 0 {
		return record.Receipt{}, errors.New("publish: the submission has no parts")
	}
	if len(sub.Parts) > maxBatch {
		return record.Receipt{}, fmt.Errorf("%w: %d parts", record.ErrTooLarge, len(sub.Parts))
	}
	pieces, err := p.pieces(sub)
	if err != nil {
		return record.Receipt{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, publishLimit, errLimit)
	defer cancel()
	if len(pieces) == 1 {
		return p.piece(ctx, pieces[0])
	}
	all := record.Receipt{Replayed: true}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, s := range pieces {
		wg.Go(func() {
			receipt, failed := p.piece(ctx, s)
			mu.Lock()
			defer mu.Unlock()
			all.Replayed = all.Replayed && receipt.Replayed
			if worse(failed, err) {
				err = failed
			}
		})
	}
	wg.Wait()
	if err != nil {
		return record.Receipt{}, err
	}
	return all, nil
}

// pieces are what of a submission goes to each lane.
func (p *Publisher) pieces(sub *record.Submission) ([]*settling, error) {
	slots := max(1, sub.Slots)
	pieces := make([]*settling, 0, 1)
	for rest := sub.Parts; len(rest) > 0; {
		slot, n := rest[0].Slot, 1
		for n < len(rest) && rest[n].Slot == slot {
			n++
		}
		if slot < 0 || slot >= slots || len(pieces) > 0 && slot <= pieces[len(pieces)-1].slot {
			return nil, fmt.Errorf("publish: a part of slot %d of %d is not in order", slot, slots)
		}
		list := messages(sub, pieceID(sub.ID, slot, slots), rest[:n])
		for _, m := range list {
			if m.tooLarge() {
				return nil, fmt.Errorf("%w: %v", record.ErrTooLarge, m)
			}
		}
		pieces = append(pieces, &settling{p: p, source: sub.Source, slot: slot, slots: slots, hash: sub.Hash, list: list, parts: rest[:n]})
		rest = rest[n:]
	}
	return pieces, nil
}

// piece makes what goes to one lane durable.
func (p *Publisher) piece(ctx context.Context, s *settling) (record.Receipt, error) {
	receipt, err := s.settle(ctx)
	if err == nil && !receipt.Replayed {
		m := p.stream.m
		for _, part := range s.parts {
			m.messages.Inc()
			m.records.Add(float64(part.Records))
			m.bytes.Add(float64(len(part.Body)))
		}
	}
	return receipt, err
}

// worse says whether a submitter should rather hear of err than of other: that
// it will never go in, or that nobody knows whether it is in.
func worse(err, other error) bool {
	if err == nil || other == nil {
		return err != nil
	}
	for _, first := range []error{record.ErrKeyReused, record.ErrTooLarge, record.ErrUnavailable} {
		if errors.Is(other, first) {
			return false
		}
		if errors.Is(err, first) {
			return true
		}
	}
	return false
}

// outcome labels what became of a submission.
func outcome(receipt record.Receipt, err error) string {
	for _, class := range []struct {
		err  error
		name string
	}{
		{record.ErrFull, "full"}, {record.ErrBusy, "busy"}, {record.ErrUnavailable, "unavailable"},
		{record.ErrHeld, "held"}, {record.ErrKeyReused, "key_reused"}, {record.ErrTooLarge, "too_large"},
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

// group is where the small messages of a lane gather.
func (p *Publisher) group(lane int) *group {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.groups[lane]
	if g == nil {
		g = &group{wire: p.wire}
		p.groups[lane] = g
	}
	return g
}

// slots bounds the commits of a lane outside of its group.
func (p *Publisher) slots(lane int) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.direct[lane]
	if c == nil {
		c = make(chan struct{}, directInFlight)
		p.direct[lane] = c
	}
	return c
}
