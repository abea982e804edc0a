package ingest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sluice/pkg/record"
)

// readAhead is how many messages wait to be decoded, so that reading and
// decoding overlap.
const readAhead = 4

// read hands on the messages of the lane, and makes sure that none is missing.
func (s *session) read(ctx context.Context, reader Reader, from uint64) error {
	for want := from; ; want++ {
		e, err := reader.Next(ctx)
		if err != nil {
			return fmt.Errorf("read the lane: %w", err)
		}
		if e.Seq != want {
			return fmt.Errorf("read the lane: got message %d where %d comes next: %w", e.Seq, want, record.ErrGap)
		}
		s.metrics.messages.Inc()
		select {
		case s.messages <- e:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fill decodes messages into blocks and hands them to store, which takes one
// only when it has nothing else to do. The claim, if there is one, is the
// first block, whatever its size.
func (s *session) fill(ctx context.Context, claim *record.Claim) error {
	next, err := record.Entry{}, error(nil) // the message that did not fit into the block before; Seq 0 when there is none
	for {
		var b *block
		select {
		case b = <-s.free:
		case <-ctx.Done():
			return ctx.Err()
		}
		b.reset(s.life)
		b.letGo(2 * s.maxBytes()) // growing leaves up to as much room again
		if claim != nil {
			err = s.refill(ctx, b, *claim)
			claim = nil
		} else {
			next, err = s.fillNew(ctx, b, next)
		}
		if err != nil {
			return err
		}
	}
}

// refill makes the block that was claimed again.
func (s *session) refill(ctx context.Context, b *block, claim record.Claim) error {
	void, err := record.ParseRuns(claim.Void)
	if err != nil {
		return halt("the position is damaged: claim %s: %w", claim, err)
	}
	for b.last < claim.Last {
		select {
		case e := <-s.messages:
			at := int(e.Seq - claim.First)
			s.add(b, e, func() bool {
				return slices.ContainsFunc(void, func(r record.Run) bool { return r.From <= at && at < r.To })
			})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case s.blocks <- b:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fillNew fills b, beginning with next, until it is handed over. It returns
// the first message of the block after it, if that was read already.
func (s *session) fillNew(ctx context.Context, b *block, next record.Entry) (record.Entry, error) {
	cfg := s.cfg
	tick := time.NewTimer(cfg.MaxAge)
	defer tick.Stop()
	for {
		s.turned.Store(time.Now().UnixNano())
		if next.Seq == 0 { // what has arrived goes in before the block is offered
			select {
			case next = <-s.messages:
			default:
			}
		}
		full := b.bytes() >= s.maxBytes() || b.columns.Rows() >= cfg.MaxRows
		if next.Seq != 0 && !full && (b.empty() || b.columns.Rows()+next.Records() <= cfg.MaxRows) {
			s.add(b, next, func() bool { return s.clock.isVoid(&next) })
			next = record.Entry{}
			if time.Since(b.born) < cfg.MaxAge {
				continue
			}
		}

		var in <-chan record.Entry
		var out chan<- *block
		full = full || next.Seq != 0
		b.full = full
		wait := time.Until(s.handedOver.Add(s.pause()))
		switch {
		case b.empty():
			in, wait = s.messages, idleTick
		case full, wait <= 0, time.Since(b.born) >= cfg.MaxAge:
			out, wait = s.blocks, time.Hour
		}
		if !full {
			in = s.messages
		}
		tick.Reset(wait)
		select {
		case next = <-in:
		case out <- b:
			s.handedOver = time.Now()
			return next, nil
		case <-tick.C:
		case <-ctx.Done():
			return next, ctx.Err()
		}
	}
}

// maxBytes is where a block is full. Lanes that are worked on at once share the
// memory.
func (l *lane) maxBytes() int {
	if l.cfg.MaxBytes > 0 {
		return l.cfg.MaxBytes
	}
	return max(l.cfg.SharedBytes/int(max(1, l.peers.Load())), leastBytes)
}

// knownBytes is the share of the lane of what may be held of identities.
func (l *lane) knownBytes() int {
	return l.cfg.KnownBytes / int(max(1, l.peers.Load()))
}

// leastBytes is a block worth inserting, however many lanes share the memory.
const leastBytes = 1 << 20

// add adds a message to a block; isVoid says whether it counts.
func (s *session) add(b *block, e record.Entry, isVoid func() bool) {
	if b.empty() {
		b.born = time.Now()
		s.metrics.lag.begin(e.Messages[0].Received)
	}
	s.clock.tick(&e)
	b.reach, b.now, b.voidBehind = s.clock.first, s.clock.times[len(s.clock.times)-1], s.clock.void
	b.add(&e, isVoid())
	if s.cfg.Tracer != nil {
		b.trace(&e)
	}
}

// repeatBytes is the share of the lane of what may be held of requests.
func (l *lane) repeatBytes() int {
	return l.cfg.RepeatBytes / int(max(1, l.peers.Load()))
}

// pause is the least time between two blocks that are not full. Lanes that are
// worked on at once share what one would make of parts, within MaxAge.
func (l *lane) pause() time.Duration {
	return min(l.cfg.MinPause*time.Duration(max(1, l.peers.Load())), max(l.cfg.MinPause, l.cfg.MaxAge))
}
