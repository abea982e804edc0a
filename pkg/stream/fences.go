package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Fences are when fences were put into the lanes, in order: from there on the
// records of a source are in other lanes.
func (s *Stream) Fences(ctx context.Context) (all []time.Time, err error) {
	for _, lane := range s.LaneNumbers() {
		state, err := s.state(ctx, lane)
		if err != nil {
			return nil, err
		}
		handle, err := s.handle(ctx, lane)
		if err != nil {
			return nil, err
		}
		for next := max(state.First, 1); next <= state.Last; {
			m, err := handle.GetMsg(ctx, next, jetstream.WithGetMsgSubject(FenceTopic(lane)))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("look for fences in lane %d: %w", lane, err)
			}
			all = append(all, m.Time)
			next = m.Sequence + 1
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	return all, nil
}
