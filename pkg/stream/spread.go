package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/flow"
)

// Spreading says where a source is to go.
type Spreading struct {
	Source string
	Lanes  []int                // its new list; the first lane stays the first
	Say    func(string, ...any) // called with each step; default none
}

const (
	// spreadLook is how often a lane is read until it is stored past its move
	// marker.
	spreadLook = 100 * time.Millisecond

	// spreadAttempt is how long one call to NATS may take before it is repeated:
	// its connection may be gone.
	spreadAttempt = 5 * time.Second

	// undoLimit is how long the end of an attempt may take.
	undoLimit = 30 * time.Second
)

// Spread moves a source to other lanes. Each lane deduplicates only what it has
// stored itself, so whatever was sent before must be stored before anything goes
// another way:
//
//	write the move into the list → wait until no api sends by the old list → move markers → wait until they are stored → write the new list
//
// From the first write to the last its posts are refused with flow.ErrHeld. When ctx
// ends before, or something fails, the move is taken back and the source stays where
// it is. A crash leaves the move: Spread again begins anew, to the same lanes or to
// others, and Stay takes it back. The first lane stays: records without an identity
// of their own go there, and a lane remembers their requests by itself.
func (s *Stream) Spread(ctx context.Context, to Spreading) error {
	if to.Say == nil {
		to.Say = func(string, ...any) {}
	}
	var source Source
	err := s.insist(ctx, func(ctx context.Context) (err error) {
		source, err = s.beginMove(ctx, to) // one whose answer was lost is found
		return err
	})
	if err != nil || source.Move == nil {
		return err
	}
	if err := s.move(ctx, source, to.Say); err != nil {
		return errors.Join(err, s.takeBack(ctx, source))
	}
	return nil
}

// beginMove writes the move into the list, unless the source is where it should be.
func (s *Stream) beginMove(ctx context.Context, to Spreading) (Source, error) {
	if err := s.Refresh(ctx); err != nil {
		return Source{}, err
	}
	for i, lane := range to.Lanes {
		if _, ok := s.view.Load().lane(lane); !ok {
			return Source{}, fmt.Errorf("there is no lane %d", lane)
		}
		if slices.Contains(to.Lanes[:i], lane) {
			return Source{}, fmt.Errorf("lane %d is named twice", lane)
		}
	}
	source, found, err := s.source(ctx, to.Source)
	switch {
	case err != nil:
		return Source{}, err
	case !found:
		return Source{}, fmt.Errorf("source %q has not been seen yet: its first record gives it all lanes there are", to.Source)
	case len(to.Lanes) == 0:
		return Source{}, errors.New("a source needs a lane")
	case len(source.Lanes) > 0 && to.Lanes[0] != source.Lanes[0]:
		return Source{}, fmt.Errorf("lane %d must stay the first lane of source %q: records without an identity of their own go there", source.Lanes[0], to.Source)
	case source.Move == nil && slices.Equal(source.Lanes, to.Lanes):
		to.Say("source %q has lanes %v already", to.Source, to.Lanes)
		return source, nil
	case source.Move != nil:
		to.Say("an earlier move of source %q was interrupted: beginning anew", to.Source)
	}
	source.Move = to.Lanes
	return s.swapSource(ctx, source)
}

// move moves a source once the move is in its list.
func (s *Stream) move(ctx context.Context, source Source, say func(string, ...any)) error {
	// Written. An api that has looked the source up before may act on that for a while.
	// What it has sent and lands behind the marker is void, and it does not answer OK.
	wait := s.cfg.Fresh + attemptLimit + time.Second
	say("records of source %q are refused from now on; waiting %v until no api sends to lanes %v any more", source.Name, wait, source.Lanes)
	if !sleep(ctx, wait) {
		return fmt.Errorf("wait until no api sends to the old lanes: %w", ctx.Err())
	}
	for _, lane := range source.Lanes {
		var marker uint64
		err := s.insist(ctx, func(ctx context.Context) (err error) {
			marker, err = s.putMarker(ctx, lane, source) // two say no more than one
			return err
		})
		if err != nil {
			return err
		}
		say("waiting until lane %d is stored up to message %d", lane, marker)
		if err := s.storedUpTo(ctx, lane, marker); err != nil {
			return fmt.Errorf("wait until lane %d is stored up to message %d: %w", lane, marker, err)
		}
	}
	// All of the source is stored. A crash here leaves the move in the list.
	source.Lanes, source.Move = source.Move, nil
	if err := s.insist(ctx, func(ctx context.Context) error {
		_, err := s.swapSource(ctx, source)
		return err
	}); err != nil {
		return err
	}
	say("records of source %q go to lanes %v", source.Name, source.Lanes)
	return nil
}

// putMarker puts a move marker into a lane: behind it requests of the source that were
// routed by an older list are void, also those that land there much later.
func (s *Stream) putMarker(ctx context.Context, lane int, source Source) (uint64, error) {
	body, err := json.Marshal(source) // for people
	if err != nil {
		return 0, err
	}
	ack, err := s.js.Publish(ctx, &nats.Msg{Subject: MoveTopic(lane), Data: body, Header: nats.Header{
		headerSource: {source.Name}, headerRevision: {strconv.FormatUint(source.Revision, 10)},
	}})
	if err != nil {
		_, _, answer := judge(err, facts{})
		return 0, fmt.Errorf("put a move marker into lane %d: %w", lane, answer)
	}
	return ack.Sequence, nil
}

// storedUpTo waits until a lane is stored up to a message.
func (s *Stream) storedUpTo(ctx context.Context, number int, seq uint64) error {
	for {
		var lane *Lane
		var at flow.LaneState
		err := s.insist(ctx, func(ctx context.Context) (err error) {
			if lane, err = s.state(ctx, number); err == nil {
				at, err = NewLaneStates(s).fitting(ctx, lane)
			}
			return err
		})
		switch {
		case err != nil:
			return err
		case lane.Last < seq:
			return fmt.Errorf("the lane ends at %d by now: it was made again", lane.Last)
		case at.Done >= seq:
			return nil
		case !sleep(ctx, spreadLook):
			return ctx.Err()
		}
	}
}

// insist repeats a call to NATS until it is answered or ctx ends, each time for a
// while: a call whose connection is lost is never answered.
func (s *Stream) insist(ctx context.Context, call func(context.Context) error) error {
	for {
		limited, cancel := context.WithTimeout(ctx, spreadAttempt)
		err := call(limited)
		cancel()
		if err == nil || !errors.Is(err, flow.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if !sleep(ctx, spreadLook) {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// takeBack takes a move out of the list.
func (s *Stream) takeBack(ctx context.Context, source Source) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	source.Move = nil
	if err := s.insist(ctx, func(ctx context.Context) error {
		_, err := s.swapSource(ctx, source)
		return err
	}); err != nil {
		if now, found, asked := s.source(ctx, source.Name); asked == nil && found && now.Move == nil {
			return nil // another process was quicker, or the end of this attempt was written though its answer was lost
		}
		return fmt.Errorf("source %q is still being moved, and its records are refused until it is moved or told to stay: %w", source.Name, err)
	}
	return nil
}

// Stay takes back a move that was interrupted.
func (s *Stream) Stay(ctx context.Context, name string) error {
	var source Source
	var found bool
	err := s.insist(ctx, func(ctx context.Context) (err error) {
		source, found, err = s.source(ctx, name)
		return err
	})
	if err != nil || !found || source.Move == nil {
		return err
	}
	return s.takeBack(ctx, source)
}

// MoveMarkers are when move markers were put into the lanes, in order: from there on
// the records of a source are in other lanes.
func (s *Stream) MoveMarkers(ctx context.Context) (all []time.Time, err error) {
	for _, lane := range s.LaneNumbers() {
		state, err := s.state(ctx, lane)
		if err != nil {
			return nil, err
		}
		for next := max(state.First, 1); next <= state.Last; {
			m, err := s.js.Get(ctx, LaneName(lane), next, MoveTopic(lane))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("look for move markers in lane %d: %w", lane, err)
			}
			all = append(all, m.Time)
			next = m.Sequence + 1
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	return all, nil
}
