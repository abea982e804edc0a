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

// Spreading is a move of a source to other lanes.
type Spreading struct {
	Source string
	Lanes  []int                // its new list, with the same first lane
	Say    func(string, ...any) // reports each step; default none
}

const (
	// spreadLook is the interval of reading a lane until its move marker is stored.
	spreadLook = 100 * time.Millisecond

	// spreadAttempt bounds one call to NATS, whose connection may be lost.
	spreadAttempt = 5 * time.Second

	// undoLimit bounds the undo of a failed attempt.
	undoLimit = 30 * time.Second
)

// Spread moves a source to other lanes. Each lane deduplicates only what it stored itself, so all
// earlier records must be stored before new ones use other lanes:
//
//	write the move into the list → wait until no api sends by the old list → move markers → wait until they are stored → write the new list
//
// Meanwhile its posts are refused with flow.ErrHeld. If ctx ends or a step fails, the move is
// undone. A crash leaves the move: Spread starts over, to the same or other lanes, and Stay
// undoes it. The first lane stays: records without a deduplication key go there, and each lane
// remembers their requests by itself.
func (s *Stream) Spread(ctx context.Context, to Spreading) error {
	if to.Say == nil {
		to.Say = func(string, ...any) {}
	}
	var source Source
	sent := false // a write of the move may be on its way
	err := s.insist(ctx, func(ctx context.Context) (err error) {
		source, err = s.beginMove(ctx, to) // finds one whose answer was lost
		sent = sent || source.Move != nil
		return err
	})
	if sent && isTransient(err) {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		return errors.Join(err, s.Stay(undo, to.Source))
	}
	if err != nil || source.Move == nil {
		return err
	}
	if err := s.move(ctx, source, to.Say); err != nil {
		return errors.Join(err, s.takeBack(ctx, source))
	}
	return nil
}

// beginMove writes the move into the list, unless the source already has these lanes.
func (s *Stream) beginMove(ctx context.Context, to Spreading) (Source, error) {
	if err := s.Refresh(ctx); err != nil {
		return Source{}, unavailable(err, 2*time.Second)
	}
	for i, lane := range to.Lanes {
		if _, ok := s.view.Load().lane(lane); !ok {
			return Source{}, fmt.Errorf("lane %d does not exist", lane)
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
		return Source{}, fmt.Errorf("source %q does not exist yet: its first record assigns all lanes", to.Source)
	case len(to.Lanes) == 0:
		return Source{}, errors.New("no lanes are given")
	case len(source.Lanes) > 0 && to.Lanes[0] != source.Lanes[0]:
		return Source{}, fmt.Errorf("lane %d must stay the first lane of source %q: records without a deduplication key go there", source.Lanes[0], to.Source)
	case source.Move == nil && slices.Equal(source.Lanes, to.Lanes):
		to.Say("source %q has lanes %v already", to.Source, to.Lanes)
		return source, nil
	case source.Move != nil:
		to.Say("an earlier move of source %q was interrupted; starting over", to.Source)
	}
	source.Move = to.Lanes
	source.renew()
	written, err := s.swapSource(ctx, source)
	if isTransient(err) {
		return source, err
	}
	return written, err
}

// move completes a move that is in the list.
func (s *Stream) move(ctx context.Context, source Source, say func(string, ...any)) error {
	// Written. An api may use an older look-up for a while. Its entries after the marker are void and not acknowledged.
	wait := s.cfg.Fresh + attemptLimit + time.Second
	say("refusing records of source %q; waiting %v until no api sends to lanes %v", source.Name, wait, source.Lanes)
	if !sleep(ctx, wait) {
		return fmt.Errorf("wait until no api sends to the old lanes: %w", ctx.Err())
	}
	for _, lane := range source.Lanes {
		var marker uint64
		err := s.insist(ctx, func(ctx context.Context) (err error) {
			if err = s.stillMoves(ctx, source); err == nil {
				marker, err = s.putMarker(ctx, lane, source) // duplicates are harmless
			}
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
	// All records of the source are stored. A crash here leaves the move in the list.
	if err := s.insist(ctx, func(ctx context.Context) error { return s.stillMoves(ctx, source) }); err != nil {
		return err
	}
	source.Lanes, source.Move = source.Move, nil
	if err := s.insist(ctx, func(ctx context.Context) error {
		_, err := s.swapSource(ctx, source)
		return err
	}); err != nil {
		return err
	}
	say("records of source %q now go to lanes %v", source.Name, source.Lanes)
	return nil
}

// stillMoves checks that the list has the move as it was written. If NATS was set back, apis send by
// the old list again: behind a marker their acknowledged requests would be void.
func (s *Stream) stillMoves(ctx context.Context, written Source) error {
	now, _, err := s.source(ctx, written.Name)
	if err == nil && (now.entry != written.entry || now.Revision != written.Revision || now.Move == nil) {
		err = changedMeanwhile(written.Name)
	}
	return err
}

// putMarker appends a move marker to a lane: after it, requests of the source routed by an older
// list are void, even if they arrive much later. If NATS is set back between stillMoves and the
// marker, requests that apis send at that moment may be void.
func (s *Stream) putMarker(ctx context.Context, lane int, source Source) (uint64, error) {
	body, err := json.Marshal(source) // for display
	if err != nil {
		return 0, err
	}
	ack, err := s.js.Publish(ctx, &nats.Msg{Subject: MoveTopic(lane), Data: body, Header: nats.Header{
		headerSource: {source.Name}, headerRevision: {strconv.FormatUint(source.Revision, 10)},
	}})
	if err != nil {
		_, _, answer := judge(err, facts{})
		return 0, fmt.Errorf("append a move marker to lane %d: %w", lane, answer)
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
			return fmt.Errorf("the lane now ends at %d: it was recreated", lane.Last)
		case at.Done >= seq:
			return nil
		case !sleep(ctx, spreadLook):
			return ctx.Err()
		}
	}
}

// insist repeats a call to NATS until it is answered or ctx ends, with a limit per attempt: after
// a lost connection no answer arrives.
func (s *Stream) insist(ctx context.Context, call func(context.Context) error) error {
	for {
		limited, cancel := context.WithTimeout(ctx, spreadAttempt)
		err := call(limited)
		cancel()
		if !isTransient(err) {
			return err
		}
		if !sleep(ctx, spreadLook) {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// isTransient reports whether the outcome of a call is unknown, or it was not made.
func isTransient(err error) bool {
	return errors.Is(err, flow.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}

// takeBack removes a move from the list.
func (s *Stream) takeBack(ctx context.Context, source Source) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	source.Move = nil
	if err := s.insist(ctx, func(ctx context.Context) error {
		_, err := s.swapSource(ctx, source)
		return err
	}); err != nil {
		if now, found, asked := s.source(ctx, source.Name); asked == nil && found && now.Move == nil {
			return nil // another process changed it, or the final write succeeded although its answer was lost
		}
		return fmt.Errorf("the move of source %q is not undone, and its records are refused: repeat sluice lanes spread, or undo it with --stay: %w", source.Name, err)
	}
	return nil
}

// Stay undoes an interrupted move. It writes the list even without a move in it: a delayed write
// of one is then refused.
func (s *Stream) Stay(ctx context.Context, name string) error {
	return s.insist(ctx, func(ctx context.Context) error {
		source, found, err := s.source(ctx, name)
		if err != nil || !found {
			return err
		}
		source.Move = nil
		source.renew()
		_, err = s.swapSource(ctx, source)
		return err
	})
}

// MoveMarkers are the times of the move markers in the lanes, in order: after them the records of
// a source are in other lanes.
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
