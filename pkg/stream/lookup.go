package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// errStale says that the lanes were not looked up lately.
var errStale = errors.New("the lanes could not be looked up for a while")

// knownLimit is how long the look-up of a lane that is known already may take.
const knownLimit = time.Second

// lookUp looks up every lane there is, or fails. A lane that is passed over
// would send its ids to other lanes, which do not know them. So the list of
// streams is not what is asked for: a cluster leaves out those whose leader
// does not answer. Their names all servers agree on; and a lane that is known
// already is asked for whether its name is there or not: that it is gone, both
// answers must say.
func (s *Stream) lookUp(ctx context.Context, old *laneSet) ([]*Lane, error) {
	begun := time.Now()
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
			lane, err := s.lookUpOne(ctx, name, named[name], old, begun)
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

// lookUpOne gives nil when the lane is gone. Of one that is known and does not
// answer, what is known stays; so it does when a server says that it is gone
// and the names do not, as one may that has not found its files again yet.
func (s *Stream) lookUpOne(ctx context.Context, name string, named bool, old *laneSet, now time.Time) (*Lane, error) {
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
		return newLane(handle.CachedInfo(), before, s.cfg.LaneDelay, now), nil
	case errors.Is(err, jetstream.ErrStreamNotFound) && !named:
		return nil, nil
	case known:
		return before, nil
	}
	return nil, fmt.Errorf("look up lane %s: %w", name, err)
}

// routable are the lanes as they were looked up a short time ago. A lane that
// was made since does not take records yet; with older knowledge an id could
// go where others do not look for it.
func (s *Stream) routable(ctx context.Context) (*laneSet, error) {
	if set := s.lanes.Load(); s.fresh(set) {
		return set, nil
	}
	if !s.refresh.TryLock() {
		return nil, errStale // somebody is looking them up: ask again soon
	}
	defer s.refresh.Unlock()
	ctx, done := s.link.attempt(ctx, patience)
	defer done()
	if err := s.look(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", errStale, lost(ctx, err))
	}
	return s.lanes.Load(), nil
}

// fresh tells it by the clock on the wall, as looked has no other: that one may
// stand still while the machine sleeps.
func (s *Stream) fresh(set *laneSet) bool {
	age := time.Since(set.looked)
	return age >= 0 && age < s.freshFor()
}

func (s *Stream) freshFor() time.Duration { return max(s.cfg.LaneDelay/2, 5*s.cfg.Poll) }
