package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/flow"
)

const (
	// lookEvery is the interval of reading a lane state that requests wait for, shared by
	// all of them.
	lookEvery = 25 * time.Millisecond

	// lookAgain is the pause after NATS did not answer.
	lookAgain = 250 * time.Millisecond
)

// waits shares lane states among waiting requests.
type waits struct {
	mu    sync.Mutex
	lanes map[int]*seen
}

// seen is the last reading of a lane state.
type seen struct {
	turn    chan struct{} // held while it is being read; guards the rest
	at      time.Time     // start of the reading
	pos     flow.LaneState
	checked bool // against the lane, with the result
	fits    error
}

// errGone means that a message will never be stored.
var errGone = errors.New("the lane no longer holds the message")

// WaitStored returns nil once the messages at these places are queryable or dead-lettered. It waits until ctx ends,
// even without an ingester or NATS, and then returns its error. It fails immediately if one of them will never be
// stored: it is void, or the lane was set back.
func (s *Stream) WaitStored(ctx context.Context, places []flow.Place) error {
	if err := s.ready(); err != nil {
		return err
	}
	for _, place := range places {
		var moves []flow.Move
		err := s.waitUntil(ctx, func(ctx context.Context, since time.Time) (reached bool, err error) {
			moves, reached, err = s.reached(ctx, place, since)
			return reached, err
		})
		if err == nil && place.ID != "" {
			err = s.waitUntil(ctx, func(ctx context.Context, _ time.Time) (bool, error) {
				err := s.counts(ctx, place, moves)
				return err == nil, err
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// waitUntil repeats is until it is true, ctx ends, or it fails permanently. An answer must be
// based on reads after since.
func (s *Stream) waitUntil(ctx context.Context, is func(ctx context.Context, since time.Time) (bool, error)) error {
	for ctx.Err() == nil {
		asking, done := s.link.attempt(ctx, attemptLimit)
		yes, err := is(asking, time.Now())
		done()
		switch {
		case yes:
			return nil
		case errors.Is(err, errGone), errors.Is(err, errVoid):
			return err
		case err != nil:
			sleep(ctx, lookAgain)
		}
	}
	return ctx.Err()
}

// reached reports whether the checkpoint has passed a place: in the same stream and incarnation,
// and not beyond the lane's end, which may have been set back before its checkpoint. moves are
// then the move markers up to there.
func (s *Stream) reached(ctx context.Context, place flow.Place, since time.Time) (moves []flow.Move, is bool, err error) {
	w := s.waits.of(place.Lane)
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	if w.at.Before(since) { // others wait for the turn
		if !sleep(ctx, time.Until(w.at.Add(lookEvery))) {
			return nil, false, ctx.Err()
		}
		begun := time.Now()
		pos, err := NewLaneStates(s).entry(ctx, place.Lane)
		if err != nil {
			return nil, false, err
		}
		w.at, w.pos, w.checked, w.fits = begun, pos, false, nil
	}
	if w.pos.StreamID != place.Stream || w.pos.Done < place.Seq || w.pos.IncarnationOf(place.Seq) != w.pos.Incarnation() {
		return nil, false, nil
	}
	if !w.checked {
		lane, err := s.state(ctx, place.Lane)
		if err != nil {
			return nil, false, err
		}
		if lane.StreamID() == w.pos.StreamID {
			err = NewLaneStates(s).check(ctx, lane, w.pos)
		} else {
			err = gap("lane %d was recreated", lane.Number)
		}
		if err != nil && !errors.Is(err, flow.ErrGap) {
			return nil, false, err
		}
		w.checked, w.fits = true, err
	}
	return w.pos.Moves, w.fits == nil, w.fits
}

// counts is nil if the message at a place is the one sent and not skipped by the ingester, else
// errGone or errVoid.
func (s *Stream) counts(ctx context.Context, place flow.Place, moves []flow.Move) error {
	msg, err := s.message(ctx, place.Lane, place.Seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && first(msg.Header, headerID) != place.ID {
		return fmt.Errorf("message %d of lane %d: %w", place.Seq, place.Lane, errGone)
	}
	if err != nil {
		return unavailable(fmt.Errorf("read message %d of lane %d: %w", place.Seq, place.Lane, err), time.Second)
	}
	e := readEntry(place.Lane, place.Seq, msg.Time, msg.Subject, msg.Header, msg.Data)
	void, err := s.late(ctx, &e)
	for i := range e.Messages { // any of its requests may be the waiting one
		_, moved := flow.MovedBy(moves, &e, &e.Messages[i])
		void = void || moved
	}
	if err == nil && void {
		err = fmt.Errorf("message %d of lane %d: %w", place.Seq, place.Lane, errVoid)
	}
	return err
}

// late reports whether an entry landed too far after its log end.
func (s *Stream) late(ctx context.Context, e *flow.Entry) (bool, error) {
	switch {
	case e.Patience == 0:
		return false, nil
	case e.LogEnd >= e.Seq:
		return true, nil
	case e.Seq-e.LogEnd-1 <= uint64(e.Patience/flow.MaxStep): // impossible by the number of messages
		return false, nil
	}
	age, err := s.age(ctx, e.Lane, e.LogEnd+1, e.Seq)
	return age > e.Patience, err
}

// Ends are the last messages of a source's lanes, so that WaitStored covers all of its earlier
// records.
func (s *Stream) Ends(ctx context.Context, source string) (ends []flow.Place, err error) {
	if err := s.ready(); err != nil {
		return nil, err
	}
	known := s.view.Load().sources[source]
	if known == nil {
		return nil, nil // no records yet
	}
	for _, number := range known.Lanes {
		lane, err := s.state(ctx, number)
		if err != nil {
			return nil, err
		}
		if lane.Last > 0 {
			ends = append(ends, flow.Place{Lane: number, Stream: lane.StreamID(), Seq: lane.Last})
		}
	}
	return ends, nil
}

func (w *waits) of(lane int) *seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lanes == nil {
		w.lanes = map[int]*seen{}
	}
	if w.lanes[lane] == nil {
		w.lanes[lane] = &seen{turn: make(chan struct{}, 1)}
	}
	return w.lanes[lane]
}
