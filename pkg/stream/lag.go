package stream

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// Lag is how far storing a lane is behind accepting.
type Lag struct {
	Lane     int
	Done     uint64 // every message up to here is stored or set aside
	Last     uint64 // the newest message
	Messages uint64 // waiting
	Bytes    uint64 // of those, estimated by the lane's mean message size
}

// Lag looks up how far storing every lane is behind, and sets the metrics.
func (s *Stream) Lag(ctx context.Context) ([]Lag, error) {
	if err := s.Refresh(ctx); err != nil {
		return nil, err
	}
	var all []Lag
	for _, lane := range s.view.Load().lanes {
		at, err := NewPositions(s).fitting(ctx, lane)
		if err != nil {
			return nil, err
		}
		done := at.Done
		l := Lag{Lane: lane.Number, Done: done, Last: lane.Last}
		if lane.Last > done {
			l.Messages = lane.Last - done
		}
		if lane.Messages > 0 {
			l.Bytes = uint64(float64(lane.Bytes) / float64(lane.Messages) * float64(min(l.Messages, lane.Messages)))
		}
		label := strconv.Itoa(lane.Number)
		s.m.lagMessages.WithLabelValues(label).Set(float64(l.Messages))
		s.m.lagBytes.WithLabelValues(label).Set(float64(l.Bytes))
		all = append(all, l)
	}
	return all, nil
}

// deadGauges looks up how much room dead letters take.
func (s *Stream) deadGauges(ctx context.Context) error {
	info, err := s.dead.Info(ctx)
	if err != nil {
		return unavailable(fmt.Errorf("look up dead letters: %w", err), 2*time.Second)
	}
	s.m.deadLetters.Set(float64(info.State.Msgs))
	s.m.deadBytes.Set(float64(info.State.Bytes))
	s.m.deadMax.Set(float64(info.Config.MaxBytes))
	return nil
}

func (s *Stream) laneGauges(l *Lane) {
	label := strconv.Itoa(l.Number)
	s.m.laneBytes.WithLabelValues(label).Set(float64(l.Bytes))
	s.m.laneMax.WithLabelValues(label).Set(float64(l.MaxBytes))
	s.m.laneMsgs.WithLabelValues(label).Set(float64(l.Messages))
}
