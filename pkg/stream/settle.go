package stream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/record"
)

const (
	// publishLimit ends a Publish whose ctx has no nearer deadline.
	publishLimit = 30 * time.Second

	// patience is how long a Publish waits for somebody to answer at all.
	patience = 1500 * time.Millisecond
)

var (
	errLimit   = errors.New("the outcome could not be settled in time")
	errNotSent = errors.New("the time was up before it was sent")
	errMoved   = errors.New("the lanes have changed")
)

// settling is one submission on its way, until its outcome is known.
type settling struct {
	p         *Publisher
	hash      string
	list      []message
	lane      *Lane
	uncertain bool      // an earlier attempt of ours may have stored it
	silent    time.Time // since when nobody answers; zero while somebody does or may yet
	tries     int
}

// settle tries until the lane has said what it has, or nobody will know in
// time. Every attempt sends the same ids to the same lane, so that it does not
// matter which of them arrived.
func (s *settling) settle(ctx context.Context) (record.Receipt, error) {
	for {
		begun := time.Now()
		receipt, err := s.attempt(ctx)
		if err == nil || errors.Is(err, record.ErrKeyReused) {
			return receipt, err
		}
		v, reason, answer := s.judge(err)
		if v == giveUp {
			return record.Receipt{}, answer
		}
		s.p.stream.m.retries.WithLabelValues(reason).Inc()
		s.tries++
		if v == unknown || v == cut {
			s.uncertain = true
		}
		if v == repeated && len(s.list) == 1 {
			continue // an id of its group, perhaps its own: alone it will hear
		}
		if s.quiet(v, begun) || !s.pause(ctx) {
			return record.Receipt{}, answer
		}
	}
}

// judge is the package's, with what only the lane knows.
func (s *settling) judge(err error) (verdict, string, error) {
	if errors.Is(err, errNotSent) {
		return giveUp, "not_sent", &record.RetryError{Err: fmt.Errorf("%w: %w", record.ErrBusy, err), After: time.Second}
	}
	if errors.Is(err, errMoved) {
		return giveUp, "moved", unavailable(err, laneSkew)
	}
	v, reason, answer := judge(err)
	if errors.Is(answer, record.ErrFull) && s.lane != nil {
		size := 0
		for _, m := range s.list {
			size += len(m.body) + headRoom
		}
		answer = &record.RetryError{Err: answer, After: s.p.stream.roomAfter(s.lane.Number, size)}
	}
	return v, reason, answer
}

// quiet says whether nobody has answered for longer than a submitter should
// wait, after an attempt since begun that failed. A server that is only slow
// answers the client's pings, and keeps the connection.
func (s *settling) quiet(v verdict, begun time.Time) bool {
	up := s.p.wire.link.up()
	if up && v != unreached && v != cut {
		s.silent = time.Time{}
		return false
	}
	if s.silent.IsZero() {
		s.silent = s.p.wire.link.silentSince(begun)
	}
	if up && v == cut {
		return false // another server is there already: ask it
	}
	return time.Since(s.silent) > patience
}

// attempt tries once.
func (s *settling) attempt(ctx context.Context) (record.Receipt, error) {
	if !s.p.wire.link.up() {
		return record.Receipt{}, nats.ErrConnectionReconnecting
	}
	if receipt, found, err := s.route(ctx); err != nil || found {
		return receipt, err
	}
	a, err := s.commit(ctx)
	switch {
	case err == nil && a.Duplicate:
		return s.compare(ctx, s.lane, a.Sequence)
	case err == nil:
		return record.Receipt{}, nil
	case isCode(err, codeDuplicateInBatch) && len(s.list) > 1:
		return s.known(ctx, err)
	}
	return record.Receipt{}, err
}

// commit commits the submission, the first time with its group if it is small.
func (s *settling) commit(ctx context.Context) (ack, error) {
	if s.tries == 0 && len(s.list) == 1 && len(s.list[0].body) < groupBelow {
		return s.p.group(s.lane.Number).commit(ctx, s.lane, s.list[0])
	}
	slots := s.p.slots(s.lane.Number)
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return ack{}, errNotSent
	}
	return s.p.wire.commit(ctx, s.lane, s.list)
}

// route finds the lane, and whether an earlier lane of the ID has it already.
func (s *settling) route(ctx context.Context) (record.Receipt, bool, error) {
	id, now := s.list[0].id, time.Now()
	set, err := s.p.stream.routable(ctx)
	if err != nil {
		if s.silent.IsZero() {
			s.silent = now // the look-up has waited for an answer
		}
		return record.Receipt{}, false, err
	}
	now = time.Now()
	r := set.route(id, now)
	until := set.until(now, s.p.stream.freshFor())
	for i := range s.list {
		s.list[i].until = until
	}
	if s.uncertain && r.lane.Number != s.lane.Number {
		// The lanes changed under it. Another api may be asked to take it now,
		// so this one must not go on with the old lane; the submitter's next
		// try asks both.
		return record.Receipt{}, false, errMoved
	}
	s.lane = r.lane
	if wait := time.Until(r.wait); wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return record.Receipt{}, false, errNotSent
		}
	}
	for _, lane := range r.earlier {
		seq, found, err := s.p.wire.find(ctx, lane, RecordTopic(lane.Number), id)
		if err != nil {
			return record.Receipt{}, false, err
		}
		if found {
			receipt, err := s.compare(ctx, lane, seq)
			return receipt, true, err
		}
	}
	return record.Receipt{}, false, nil
}

// known finds out about a submission of several parts of which the lane knows
// an id. Parts are stored together, so the first one tells. When the lane knows
// only others, it is about to forget them all: the duplicate window ends
// between two parts. Then the next attempt is a new submission.
func (s *settling) known(ctx context.Context, cause error) (record.Receipt, error) {
	seq, found, err := s.p.wire.find(ctx, s.lane, RecordTopic(s.lane.Number), s.list[0].id)
	if err != nil {
		return record.Receipt{}, err
	}
	if !found {
		return record.Receipt{}, cause
	}
	return s.compare(ctx, s.lane, seq)
}

// compare tells a repeat from a misused key, by the message the lane has under
// this ID.
func (s *settling) compare(ctx context.Context, lane *Lane, seq uint64) (record.Receipt, error) {
	ctx, done := s.p.wire.link.attempt(ctx, attemptLimit)
	defer done()
	msg, err := s.p.stream.message(ctx, lane.Number, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		// Removed by hand within the window. It was durable under this ID, and
		// nothing is left to compare.
		return record.Receipt{Replayed: true}, nil
	}
	if err != nil {
		return record.Receipt{}, lost(ctx, err)
	}
	if first(msg.Header, headerHash) != s.hash {
		return record.Receipt{}, record.ErrKeyReused
	}
	return record.Receipt{Replayed: !s.uncertain}, nil
}

// pause waits between attempts, longer each time but not while nobody answers
// at all, and says whether to go on.
func (s *settling) pause(ctx context.Context) bool {
	wait := min(25*time.Millisecond<<min(s.tries, 6), time.Second)
	if !s.silent.IsZero() {
		wait = min(wait, 100*time.Millisecond)
	}
	return sleep(ctx, wait/2+rand.N(wait/2)) && ctx.Err() == nil
}
