package stream

import (
	"context"
	"fmt"
	"time"

	"sluice/pkg/record"
)

// Standing is a lane with its entry as it is written, for people to look at.
type Standing struct {
	Lane
	Position     record.Position
	Waiting      uint64 // messages that are not stored yet
	WaitingBytes uint64 // of those, estimated by the lane's mean message size
}

// Standings looks lanes, their entries and the sources up now. It compares no
// entry with its lane: who works on the lane does that.
func (s *Stream) Standings(ctx context.Context) ([]Standing, error) {
	if err := s.ready(); err != nil {
		return nil, err
	}
	if err := s.Refresh(ctx); err != nil {
		return nil, err
	}
	positions := NewPositions(s)
	var all []Standing
	for _, lane := range s.Lanes() {
		pos, err := positions.entry(ctx, lane.Number)
		if err != nil {
			return nil, err
		}
		at := Standing{Lane: lane, Position: pos}
		done := pos.Done
		if pos.Stream != "" && pos.Stream != lane.Identity() { // nothing of this stream is known to be stored
			done = 0
		}
		at.Waiting, at.WaitingBytes = waiting(&lane, done)
		all = append(all, at)
	}
	return all, nil
}

// waiting is what of a lane comes after a message: how many messages, and about
// how many bytes.
func waiting(lane *Lane, done uint64) (messages, bytes uint64) {
	if lane.Last > done {
		messages = lane.Last - done
	}
	if lane.Messages > 0 {
		bytes = uint64(float64(lane.Bytes) / float64(lane.Messages) * float64(min(messages, lane.Messages)))
	}
	return messages, bytes
}

// Room is how many dead letters there are, and the bytes they take of those they
// may take.
func (l *DeadLetters) Room(ctx context.Context) (letters, bytes uint64, most int64, err error) {
	if err := l.stream.ready(); err != nil {
		return 0, 0, 0, err
	}
	info, err := l.stream.dead.Info(ctx)
	if err != nil {
		return 0, 0, 0, unavailable(fmt.Errorf("look up dead letters: %w", err), 2*time.Second)
	}
	return info.State.Msgs, info.State.Bytes, info.Config.MaxBytes, nil
}
