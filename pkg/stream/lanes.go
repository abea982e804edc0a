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

// Lane is a lane at its last look-up.
type Lane struct {
	Number   int
	Stream   string        // its JetStream stream
	Created  time.Time     // creation of the stream, or of its original; distinguishes streams of the same name
	First    uint64        // sequence of the oldest message, Last+1 if empty
	Last     uint64        // sequence of the newest message ever
	Messages uint64        // messages it holds
	Bytes    uint64        // bytes it holds
	MaxBytes int64         // size limit
	Window   time.Duration // duplicate window
	Replicas int           // copies of the stream
	Now      time.Time     // server time of the look-up; the server stamps the lane's messages
	Looked   time.Time     // local time of the request, or earlier
	id       string
	freeRate freeRate
}

// StreamID identifies the stream of the lane: name@creation, unix ns. Unlike an incarnation it
// survives sluice lanes reset.
func (l *Lane) StreamID() string { return l.id }

func newLane(info *jetstream.StreamInfo, before *Lane, now time.Time) *Lane {
	number, _ := laneNumber(info.Config.Name)
	l := &Lane{
		Number: number, Stream: info.Config.Name, Created: created(info),
		First: info.State.FirstSeq, Last: info.State.LastSeq,
		Messages: info.State.Msgs, Bytes: info.State.Bytes,
		MaxBytes: info.Config.MaxBytes, Window: info.Config.Duplicates, Replicas: info.Config.Replicas,
		Now: info.TimeStamp, Looked: now,
	}
	l.id = l.Stream + "@" + strconv.FormatInt(l.Created.UnixNano(), 10)
	if before != nil {
		l.freeRate = before.freeRate
	}
	l.freeRate.observe(l, now)
	return l
}

// created is the creation time of a stream; of a copy from another NATS, with all sequences and
// times, that of the original.
func created(info *jetstream.StreamInfo) time.Time {
	if ns, err := strconv.ParseInt(info.Config.Metadata[CreatedKey], 10, 64); err == nil {
		return time.Unix(0, ns).UTC()
	}
	return info.Created
}

// view is an immutable look-up of lanes and sources.
type view struct {
	lanes     []*Lane // by number
	sources   map[string]*Source
	sourcesAt sourceState
	looked    time.Time // start of the look-up
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

// has reports whether all these lanes exist.
func (v *view) has(numbers []int) bool {
	for _, n := range numbers {
		if _, ok := v.lane(n); !ok {
			return false
		}
	}
	return true
}

// Refresh looks up lanes and sources now.
func (s *Stream) Refresh(ctx context.Context) error {
	s.refresh.Lock()
	defer s.refresh.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return s.look(ctx)
}

// Lanes are the lanes at the last look-up, in order.
func (s *Stream) Lanes() []Lane {
	v := s.view.Load()
	lanes := make([]Lane, len(v.lanes))
	for i, l := range v.lanes {
		lanes[i] = *l
	}
	return lanes
}

// LaneNumbers are their numbers.
func (s *Stream) LaneNumbers() []int {
	v := s.view.Load()
	numbers := make([]int, len(v.lanes))
	for i, l := range v.lanes {
		numbers[i] = l.Number
	}
	return numbers
}

// endsBefore is the error for a lane that ends before a message already read from it. A new
// leader may answer before it has written all that the servers agreed on; if it persists after
// settleTime it is a gap.
func (s *Stream) endsBefore(lane *Lane, gap error) error {
	since, _ := s.behind.LoadOrStore(lane.Number, s.cfg.Now())
	if lane.Replicas > 1 && s.cfg.Now().Sub(since.(time.Time)) < s.settle {
		return unavailable(fmt.Errorf("the leader of lane %d may be catching up: %s", lane.Number, gap), time.Second)
	}
	return gap
}

// reaches clears the mark of endsBefore.
func (s *Stream) reaches(lane *Lane) { s.behind.Delete(lane.Number) }

// settleTime bounds the catch-up of a new leader.
const settleTime = 20 * time.Second

// message reads one message of a lane from its leader.
func (s *Stream) message(ctx context.Context, lane int, seq uint64) (*jetstream.RawStreamMsg, error) {
	return s.js.Get(ctx, LaneName(lane), seq, "")
}

// roomAfter estimates when a full lane has space for size bytes.
func (s *Stream) roomAfter(lane, size int) time.Duration {
	l, ok := s.view.Load().lane(lane)
	if !ok {
		return unknownRetryAfter
	}
	return l.freeRate.after(size, s.cfg.Now())
}

// state looks up a lane and its limits now.
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

// errStale means that the last look-up is too old.
var errStale = errors.New("the last look-up of lanes is too old")

// knownLimit bounds the look-up of a known lane.
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
			s.log.Error("a lane was deleted and recreated: unstored messages are lost", "lane", lane.Number)
		}
	}
	s.view.Store(next)
	return nil
}

// lookUpLanes looks up all lanes, or fails: a lane missing here would be missing in the list of
// a new source. It does not use the list of streams, where a cluster omits those whose leader
// does not answer. All servers agree on the names; and a known lane is looked up even if its
// name is missing: it is gone only if both say so.
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

// laneNames are the names of the lanes' streams.
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
		return nil, errors.New("no lane exists")
	}
	return names, nil
}

// lookUpLane returns nil if the lane is gone. If a known lane does not answer, or a server says
// that it is gone but its name is listed (files not recovered yet), the last look-up stays.
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

// routable is a recent look-up. With an older one, a record could go to a lane that its source
// has left.
func (s *Stream) routable(ctx context.Context) (*view, error) {
	if v := s.view.Load(); !passed(s.cfg.Now(), s.until(v)) {
		return v, nil
	}
	return s.lookNow(ctx)
}

// lookNow looks up lanes and sources for a waiting caller.
func (s *Stream) lookNow(ctx context.Context) (*view, error) {
	if !s.refresh.TryLock() {
		return nil, errStale // another look-up is in progress: retry soon
	}
	defer s.refresh.Unlock()
	ctx, done := s.link.attempt(ctx, patience)
	defer done()
	if err := s.look(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", errStale, lossCause(ctx, err))
	}
	return s.view.Load(), nil
}

// until is the time until which a view may be used.
func (s *Stream) until(v *view) time.Time { return v.looked.Add(s.cfg.Fresh) }

// passed reports whether a time has passed by either clock: the wall clock may be set back, the
// monotonic one may stop while the machine sleeps.
func passed(now, t time.Time) bool {
	return now.After(t) || now.Round(0).After(t.Round(0))
}

// freeRate estimates how fast a full lane frees space, from the purges of the last minutes.
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

// observe records the purged bytes since the last observation.
func (d *freeRate) observe(l *Lane, now time.Time) {
	var gone float64
	if d.first != 0 && l.First > d.first {
		gone = float64(l.First-d.first) * d.mean
	}
	if l.Messages > 0 {
		d.mean = float64(l.Bytes) / float64(l.Messages)
	}
	d.first = l.First
	// A copy: the previous slice is still being read.
	seen := make([]freed, 0, len(d.seen)+1)
	for _, f := range d.seen {
		if now.Sub(f.at) < freeRateSpan {
			seen = append(seen, f)
		}
	}
	d.seen = append(seen, freed{at: now, bytes: gone})
}

// after estimates when need bytes will be free, from a second to a minute. If nothing was freed
// in the whole span, it is the longest wait; shortly after a start it is shorter.
func (d *freeRate) after(need int, now time.Time) time.Duration {
	if len(d.seen) < 2 {
		return unknownRetryAfter
	}
	span := now.Sub(d.seen[0].at)
	var sum float64
	for _, f := range d.seen[1:] { // the first starts the span
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
