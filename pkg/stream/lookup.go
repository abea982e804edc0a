package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// errStale says that lanes and sources were not looked up lately.
var errStale = errors.New("the lanes could not be looked up for a while")

// knownLimit is how long the look-up of a lane that is known already may take.
const knownLimit = time.Second

// look looks up lanes and sources, under the lock of Refresh.
func (s *Stream) look(ctx context.Context) error {
	begun := time.Now()
	old := s.view.Load()
	next := &view{looked: begun}
	var both errgroup.Group
	both.Go(func() (err error) {
		next.lanes, err = s.lookUpLanes(ctx, old, begun)
		return err
	})
	both.Go(func() (err error) {
		next.sources, next.sourcesAt, err = s.lookUpSources(ctx, old)
		return err
	})
	if err := both.Wait(); err != nil {
		return err
	}
	for _, lane := range next.lanes {
		s.laneGauges(lane)
		if before, ok := old.lane(lane.Number); ok && before.Created != lane.Created {
			s.log.Error("a lane was deleted and made again: what was in it and not stored is gone", "lane", lane.Number)
		}
	}
	s.view.Store(next)
	return nil
}

// lookUpLanes looks up every lane there is, or fails. A lane that is passed
// over would be missing in the list of a source that is first seen. So the list
// of streams is not what is asked for: a cluster leaves out those whose leader
// does not answer. Their names all servers agree on; and a lane that is known
// already is asked for whether its name is there or not: that it is gone, both
// answers must say.
func (s *Stream) lookUpLanes(ctx context.Context, old *view, begun time.Time) ([]*Lane, error) {
	named, err := s.laneNames(ctx)
	if err != nil {
		return nil, fmt.Errorf("look up lanes: %w", err)
	}
	names := maps.Clone(named)
	if old != nil {
		for _, lane := range old.lanes {
			names[lane.Stream] = true
		}
	}
	lanes := make([]*Lane, 0, len(names))
	var mu sync.Mutex
	var all errgroup.Group
	for name := range names {
		all.Go(func() error {
			lane, err := s.lookUpLane(ctx, name, named[name], old, begun)
			if lane == nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			lanes = append(lanes, lane)
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	slices.SortFunc(lanes, func(a, b *Lane) int { return a.Number - b.Number })
	return lanes, nil
}

// laneNames are the names of the streams that are lanes.
func (s *Stream) laneNames(ctx context.Context) (map[string]bool, error) {
	names := map[string]bool{}
	list := s.js.StreamNames(ctx, jetstream.WithStreamListSubject("flow.*.record"))
	for name := range list.Name() {
		if _, ok := laneNumber(name); ok {
			names[name] = true
		}
	}
	if err := list.Err(); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, errors.New("there are none")
	}
	return names, nil
}

// lookUpLane gives nil when the lane is gone. Of one that is known and does not
// answer, what is known stays; so it does when a server says that it is gone
// and the names do not, as one may that has not found its files again yet.
func (s *Stream) lookUpLane(ctx context.Context, name string, named bool, old *view, now time.Time) (*Lane, error) {
	number, _ := laneNumber(name)
	before, known := old.lane(number)
	if known {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, knownLimit)
		defer cancel()
	}
	handle, err := s.js.Stream(ctx, name)
	switch {
	case err == nil:
		return newLane(handle.CachedInfo(), before, now), nil
	case errors.Is(err, jetstream.ErrStreamNotFound) && !named:
		return nil, nil
	case known:
		return before, nil
	}
	return nil, fmt.Errorf("look up lane %s: %w", name, err)
}

// routable is what was looked up a short time ago. With older knowledge a
// record could go to a lane that its source has left.
func (s *Stream) routable(ctx context.Context) (*view, error) {
	if v := s.view.Load(); !passed(time.Now(), s.until(v)) {
		return v, nil
	}
	return s.lookNow(ctx)
}

// lookNow looks up lanes and sources for somebody who waits for it.
func (s *Stream) lookNow(ctx context.Context) (*view, error) {
	if !s.refresh.TryLock() {
		return nil, errStale // somebody is looking them up: ask again soon
	}
	defer s.refresh.Unlock()
	ctx, done := s.link.attempt(ctx, patience)
	defer done()
	if err := s.look(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", errStale, lost(ctx, err))
	}
	return s.view.Load(), nil
}

// until is how long a view may be acted on.
func (s *Stream) until(v *view) time.Time { return v.looked.Add(s.cfg.Fresh) }

// passed says whether a time has come by either clock: the one on the wall may
// be set back, the other may stand still while the machine sleeps.
func passed(now, t time.Time) bool {
	return now.After(t) || now.Round(0).After(t.Round(0))
}
