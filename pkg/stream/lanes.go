package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// Lane is a lane as it was looked up last.
type Lane struct {
	Number   int
	Stream   string        // its JetStream stream
	Created  time.Time     // when the stream was made, or the one it is a copy of; tells it from another of the same name
	First    uint64        // sequence of the oldest message it holds, LastSeq+1 when it holds none
	Last     uint64        // sequence of the newest message it ever took
	Messages uint64        // messages it holds
	Bytes    uint64        // bytes it holds
	MaxBytes int64         // bytes it may hold
	Window   time.Duration // how long it knows the ids of the messages it has taken
	Replicas int           // servers that hold it
	Now      time.Time     // when the server said so, by its own clock, which stamps the lane's messages
	Looked   time.Time     // when it was asked, or before, by this machine's
	freeRate freeRate
}

// StreamID names the stream behind the lane for ever: name@creation, unix ns.
// Unlike an incarnation it survives sluice lanes reset.
func (l *Lane) StreamID() string {
	return l.Stream + "@" + strconv.FormatInt(l.Created.UnixNano(), 10)
}

func newLane(info *jetstream.StreamInfo, before *Lane, now time.Time) *Lane {
	number, _ := laneNumber(info.Config.Name)
	l := &Lane{
		Number: number, Stream: info.Config.Name, Created: created(info),
		First: info.State.FirstSeq, Last: info.State.LastSeq,
		Messages: info.State.Msgs, Bytes: info.State.Bytes,
		MaxBytes: info.Config.MaxBytes, Window: info.Config.Duplicates, Replicas: info.Config.Replicas,
		Now: info.TimeStamp, Looked: now,
	}
	if before != nil {
		l.freeRate = before.freeRate
	}
	l.freeRate.observe(l, now)
	return l
}

// created is when a stream was made. One that was carried here from another NATS,
// with all of its numbers and times, is the same as it was there.
func created(info *jetstream.StreamInfo) time.Time {
	if ns, err := strconv.ParseInt(info.Config.Metadata[CreatedKey], 10, 64); err == nil {
		return time.Unix(0, ns).UTC()
	}
	return info.Created
}

// view is what is known of lanes and sources. It is replaced, never changed.
type view struct {
	lanes     []*Lane // by number
	sources   map[string]*Source
	sourcesAt sourceState
	looked    time.Time // when the look-up began
}

func (v *view) lane(number int) (*Lane, bool) {
	if v == nil {
		return nil, false
	}
	i, ok := slices.BinarySearchFunc(v.lanes, number, func(l *Lane, n int) int { return l.Number - n })
	if !ok {
		return nil, false
	}
	return v.lanes[i], true
}

// has says whether all these lanes are there.
func (v *view) has(numbers []int) bool {
	for _, n := range numbers {
		if _, ok := v.lane(n); !ok {
			return false
		}
	}
	return true
}

// Refresh looks lanes and sources up now.
func (s *Stream) Refresh(ctx context.Context) error {
	s.refresh.Lock()
	defer s.refresh.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return s.look(ctx)
}

// Lanes are the lanes as they were looked up last, in order.
func (s *Stream) Lanes() []Lane {
	v := s.view.Load()
	lanes := make([]Lane, len(v.lanes))
	for i, l := range v.lanes {
		lanes[i] = *l
	}
	return lanes
}

// LaneNumbers are the numbers of Lanes.
func (s *Stream) LaneNumbers() []int {
	v := s.view.Load()
	numbers := make([]int, len(v.lanes))
	for i, l := range v.lanes {
		numbers[i] = l.Number
	}
	return numbers
}

// endsBefore judges a lane that ends before a message that was read from it. Of
// several servers one that has just become the leader may answer before it has
// written all that they agreed on; what still is so after settleTime is a gap.
func (s *Stream) endsBefore(lane *Lane, gap error) error {
	since, _ := s.behind.LoadOrStore(lane.Number, s.cfg.Now())
	if lane.Replicas > 1 && s.cfg.Now().Sub(since.(time.Time)) < s.settle {
		return unavailable(fmt.Errorf("the leader of lane %d may not have caught up yet: %s", lane.Number, gap), time.Second)
	}
	return gap
}

// reaches forgets that a lane was behind.
func (s *Stream) reaches(lane *Lane) { s.behind.Delete(lane.Number) }

// settleTime is how long the new leader of a lane has to write what it is behind.
const settleTime = 20 * time.Second

// message reads one message of a lane from its leader.
func (s *Stream) message(ctx context.Context, lane int, seq uint64) (*jetstream.RawStreamMsg, error) {
	return s.js.Get(ctx, LaneName(lane), seq, "")
}

// roomAfter is how long until a full lane is likely to have room for size
// bytes.
func (s *Stream) roomAfter(lane, size int) time.Duration {
	l, ok := s.view.Load().lane(lane)
	if !ok {
		return unknownRetryAfter
	}
	return l.freeRate.after(size, s.cfg.Now())
}

// state looks a lane up now, and its limits with it.
func (s *Stream) state(ctx context.Context, lane int) (*Lane, error) {
	info, err := s.js.Info(ctx, LaneName(lane), "")
	if err == nil {
		before, _ := s.view.Load().lane(lane)
		return newLane(info, before, s.cfg.Now()), nil
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("lane %d: %w", lane, err)
	}
	return nil, unavailable(fmt.Errorf("look up lane %d: %w", lane, err), 2*time.Second)
}

// errStale says that lanes and sources were not looked up lately.
var errStale = errors.New("the lanes could not be looked up for a while")

// knownLimit is how long the look-up of a lane that is known already may take.
const knownLimit = time.Second

// look looks up lanes and sources, under the lock of Refresh.
func (s *Stream) look(ctx context.Context) error {
	begun := s.cfg.Now()
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
	list, err := s.js.Names(ctx, "flow.*.record")
	if err != nil {
		return nil, err
	}
	for _, name := range list {
		if _, ok := laneNumber(name); ok {
			names[name] = true
		}
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
	info, err := s.js.Info(ctx, name, "")
	switch {
	case err == nil:
		return newLane(info, before, now), nil
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
	if v := s.view.Load(); !passed(s.cfg.Now(), s.until(v)) {
		return v, nil
	}
	return s.lookNow(ctx)
}

// lookNow looks up lanes and sources for a caller that waits for it.
func (s *Stream) lookNow(ctx context.Context) (*view, error) {
	if !s.refresh.TryLock() {
		return nil, errStale // another call is looking them up: ask again soon
	}
	defer s.refresh.Unlock()
	ctx, done := s.link.attempt(ctx, patience)
	defer done()
	if err := s.look(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", errStale, lossCause(ctx, err))
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

// freeRate estimates how fast a full lane makes room, from what was purged of it
// in the last minutes.
type freeRate struct {
	seen  []freed
	first uint64 // First at the last observation
	mean  float64
}

type freed struct {
	at    time.Time
	bytes float64
}

const (
	freeRateSpan = 5 * time.Minute

	minRetryAfter     = time.Second
	maxRetryAfter     = time.Minute
	unknownRetryAfter = 10 * time.Second
)

// observe notes what of the lane was purged since the last observation.
func (d *freeRate) observe(l *Lane, now time.Time) {
	var gone float64
	if d.first != 0 && l.First > d.first {
		gone = float64(l.First-d.first) * d.mean
	}
	if l.Messages > 0 {
		d.mean = float64(l.Bytes) / float64(l.Messages)
	}
	d.first = l.First
	// A copy: the lane set before this one is still being read.
	seen := make([]freed, 0, len(d.seen)+1)
	for _, f := range d.seen {
		if now.Sub(f.at) < freeRateSpan {
			seen = append(seen, f)
		}
	}
	d.seen = append(seen, freed{at: now, bytes: gone})
}

// after is how long until need bytes have been freed at the rate seen, between
// a second and a minute. When nothing was freed in the whole span, that is not known,
// and the longest wait is the honest answer; right after a start a shorter one
// finds out.
func (d *freeRate) after(need int, now time.Time) time.Duration {
	if len(d.seen) < 2 {
		return unknownRetryAfter
	}
	span := now.Sub(d.seen[0].at)
	var sum float64
	for _, f := range d.seen[1:] { // the first begins the span
		sum += f.bytes
	}
	if sum == 0 {
		if span < maxRetryAfter {
			return unknownRetryAfter
		}
		return maxRetryAfter
	}
	wait := time.Duration(float64(need) / sum * float64(span))
	return min(max(wait.Round(time.Second), minRetryAfter), maxRetryAfter)
}
