package stream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/change"
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
	errMoved   = errors.New("the source has other lanes by now")
)

// settling is what of a submission goes to one lane, on its way until its
// outcome is known.
type settling struct {
	p         *Publisher
	source    string
	slot      int // which of the lanes of its source it goes to,
	slots     int // of how many
	hash      string
	parts     []record.Part // what list was made of
	list      []message
	lane      *Lane
	once      bool      // a second attempt could store it twice
	uncertain bool      // an earlier attempt of ours may have stored it
	silent    time.Time // since when nobody answers; zero while somebody does or may yet
	tries     int
}

// settle tries until the lane has said what it has, or nobody will know in
// time. Every attempt sends the same ids to the same lane, so that it does not
// matter which of them arrived.
func (s *settling) settle(ctx context.Context) (receipt record.Receipt, err error) {
	err = s.retry(ctx, func() (err error) {
		receipt, err = s.attempt(ctx)
		return err
	})
	return receipt, err
}

// retry makes attempts until one has an outcome, or nobody will know in time.
func (s *settling) retry(ctx context.Context, attempt func() error) error {
	for {
		begun := time.Now()
		err := attempt()
		if err == nil || errors.Is(err, record.ErrKeyReused) || errors.Is(err, change.ErrStale) {
			return err
		}
		v, reason, answer := s.judge(err)
		if v == giveUp || s.once && (v == unknown || v == cut) {
			return answer
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
			return answer
		}
	}
}

// judge is the package's, with what only the lane knows.
func (s *settling) judge(err error) (verdict, string, error) {
	if errors.Is(err, errNotSent) {
		return giveUp, "not_sent", &record.RetryError{Err: fmt.Errorf("%w: %w", record.ErrBusy, err), After: time.Second}
	}
	if errors.Is(err, errMoved) {
		return giveUp, "moved", unavailable(err, time.Second)
	}
	if errors.Is(err, record.ErrHeld) {
		return giveUp, "held", err
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
	if err := s.route(ctx); err != nil {
		return record.Receipt{}, err
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

// route finds the lane.
func (s *settling) route(ctx context.Context) error {
	source, v, err := s.lanes(ctx)
	if err != nil {
		return err
	}
	switch {
	case source.Moving != nil:
		return held(10*time.Second, "%q is being moved to lanes %v", s.source, source.Moving)
	case len(source.Lanes) != s.slots:
		return held(time.Second, "%q has %d lanes by now", s.source, len(source.Lanes))
	}
	lane, ok := v.lane(source.Lanes[s.slot])
	if !ok {
		if v, err = s.p.stream.lookNow(ctx); err != nil { // it may be newer than the look-up
			return err
		}
		if lane, ok = v.lane(source.Lanes[s.slot]); !ok {
			return held(10*time.Second, "lane %d of %q is missing", source.Lanes[s.slot], s.source)
		}
	}
	if s.uncertain && lane.Number != s.lane.Number {
		// Its source was moved under it, and it may be in the lane from before:
		// the submitter's next try is known by its records.
		return errMoved
	}
	until := s.p.stream.until(v)
	for i := range s.list {
		s.list[i].until = until
	}
	s.lane = lane
	return nil
}

// lanes finds the lanes of the source, as they were looked up a short time ago;
// a source that is first seen gets them.
func (s *settling) lanes(ctx context.Context) (*Source, *view, error) {
	begun := time.Now()
	v, err := s.p.stream.routable(ctx)
	source := (*Source)(nil)
	if err == nil {
		if source = v.sources[s.source]; source == nil {
			source, v, err = s.first(ctx)
		}
	}
	if err != nil {
		if s.silent.IsZero() {
			s.silent = begun // it has waited for an answer
		}
		return nil, nil, err
	}
	if len(source.Lanes) == 0 {
		return nil, nil, held(10*time.Second, "the entry of %q is damaged", s.source)
	}
	return source, v, nil
}

// first gives a source that nobody knew its lanes: all there are now.
func (s *settling) first(ctx context.Context) (*Source, *view, error) {
	v, err := s.p.stream.lookNow(ctx)
	if err != nil {
		return nil, nil, err
	}
	if source := v.sources[s.source]; source != nil {
		return source, v, nil
	}
	asking, done := s.p.wire.link.attempt(ctx, patience)
	err = lost(asking, s.p.stream.meet(asking, s.source, v.lanes))
	done()
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errStale, err)
	}
	// Met. A crash here leaves a source without records.
	if v, err = s.p.stream.lookNow(ctx); err != nil {
		return nil, nil, err
	}
	source := v.sources[s.source]
	if source == nil {
		return nil, nil, fmt.Errorf("%w: source %q is not there yet", errStale, s.source)
	}
	return source, v, nil
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
