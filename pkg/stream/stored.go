package stream

import (
	"context"
	"sync"
	"time"

	"sluice/pkg/record"
)

const (
	// lookEvery is how often the position of a lane is read while a request waits
	// for it, however many do.
	lookEvery = 25 * time.Millisecond

	// lookAgain is the pause after NATS could not be asked.
	lookAgain = 250 * time.Millisecond
)

// waits are the positions of lanes that requests wait for, read once for all
// of them.
type waits struct {
	mu    sync.Mutex
	lanes map[int]*seen
}

// seen is a position as it was read last.
type seen struct {
	turn chan struct{} // holds one while it is being read; guards the rest
	at   time.Time     // when that began
	pos  record.Position
}

// Stored returns nil once everything that the lanes of a source hold when it is
// called can be queried, or is set aside. It waits as long as ctx allows, also
// for an ingester or a NATS that is away, and returns its error then.
func (s *Stream) Stored(ctx context.Context, source string) error {
	known := s.view.Load().sources[source]
	if known == nil {
		return nil // it has published nothing
	}
	for _, lane := range known.Lanes {
		if err := s.storedLane(ctx, lane); err != nil {
			return err
		}
	}
	return nil
}

// storedLane is Stored for one lane.
func (s *Stream) storedLane(ctx context.Context, lane int) error {
	state, err := s.state(ctx, lane)
	for ; err != nil; state, err = s.state(ctx, lane) {
		if !sleep(ctx, lookAgain) {
			return ctx.Err()
		}
	}
	for begun := time.Now(); ; begun = time.Now() {
		pos, err := s.positionSince(ctx, lane, begun.Add(-lookEvery))
		pause := lookEvery
		switch {
		case err != nil:
			pause = lookAgain
		case pos.Done >= state.Last && (pos.Stream == state.Identity() || state.Last == 0):
			return nil
		}
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// positionSince is the position of a lane, read after a time.
func (s *Stream) positionSince(ctx context.Context, lane int, since time.Time) (record.Position, error) {
	w := s.waits.of(lane)
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return record.Position{}, ctx.Err()
	}
	if w.at.After(since) {
		return w.pos, nil
	}
	begun := time.Now()
	pos, err := NewPositions(s).entry(ctx, lane)
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
