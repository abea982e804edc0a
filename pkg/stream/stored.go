package stream

import (
	"context"
	"sync"
	"time"

	"sluice/pkg/flow"
)

const (
	// lookEvery is how often the checkpoint of a lane is read while requests wait
	// for it, however many do.
	lookEvery = 25 * time.Millisecond

	// lookAgain is the pause after NATS did not answer.
	lookAgain = 250 * time.Millisecond
)

// waits are the checkpoints of lanes that requests wait for, each read once for
// all of them.
type waits struct {
	mu    sync.Mutex
	lanes map[int]*seen
}

// seen is a checkpoint as it was read last.
type seen struct {
	turn chan struct{} // holds one while it is being read; guards the rest
	at   time.Time     // when that began
	pos  flow.LaneState
}

// WaitStored returns nil once the messages at these places can be queried, or are
// dead-lettered. It waits as long as ctx allows, also for an ingester or a NATS that
// is away, and returns its error then.
func (s *Stream) WaitStored(ctx context.Context, places []flow.Place) error {
	if err := s.ready(); err != nil {
		return err
	}
	for _, place := range places {
		for {
			pos, err := s.positionSince(ctx, place.Lane, s.cfg.Now().Add(-lookEvery))
			if err == nil && pos.StreamID == place.Stream && pos.Done >= place.Seq {
				break
			}
			pause := lookEvery
			if err != nil {
				pause = lookAgain
			}
			if !sleep(ctx, pause) {
				return ctx.Err()
			}
		}
	}
	return nil
}

// Ends are the last messages of a source's lanes, so that WaitStored waits for all
// that it has published so far.
func (s *Stream) Ends(ctx context.Context, source string) (ends []flow.Place, err error) {
	if err := s.ready(); err != nil {
		return nil, err
	}
	known := s.view.Load().sources[source]
	if known == nil {
		return nil, nil // it has published nothing
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

// positionSince is the position of a lane, read after a time.
func (s *Stream) positionSince(ctx context.Context, lane int, since time.Time) (flow.LaneState, error) {
	w := s.waits.of(lane)
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return flow.LaneState{}, ctx.Err()
	}
	if w.at.After(since) {
		return w.pos, nil
	}
	begun := s.cfg.Now()
	pos, err := NewLaneStates(s).entry(ctx, lane)
	if err == nil {
		w.at, w.pos = begun, pos
	}
	return pos, err
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
