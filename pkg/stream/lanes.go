package stream

import (
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/zeebo/xxh3"
)

// Lane is a lane as it was looked up last.
type Lane struct {
	Number   int
	Stream   string        // its JetStream stream
	Created  time.Time     // when the stream was made; tells it from another of the same name
	From     time.Time     // it takes records from then on
	First    uint64        // sequence of the oldest message it holds, LastSeq+1 when it holds none
	Last     uint64        // sequence of the newest message it ever took
	Messages uint64        // messages it holds
	Bytes    uint64        // bytes it holds
	MaxBytes int64         // bytes it may hold
	Window   time.Duration // how long it knows the ids it has taken
	drain    drain
}

// Identity names the stream behind the lane for ever: name@creation, unix ns.
func (l *Lane) Identity() string {
	return l.Stream + "@" + strconv.FormatInt(l.Created.UnixNano(), 10)
}

func newLane(info *jetstream.StreamInfo, before *Lane, delay time.Duration, now time.Time) *Lane {
	number, _ := laneNumber(info.Config.Name)
	l := &Lane{
		Number: number, Stream: info.Config.Name, Created: info.Created, From: info.Created.Add(delay),
		First: info.State.FirstSeq, Last: info.State.LastSeq,
		Messages: info.State.Msgs, Bytes: info.State.Bytes,
		MaxBytes: info.Config.MaxBytes, Window: info.Config.Duplicates,
	}
	if number == 0 {
		l.From = time.Time{} // there is always somewhere to go
	}
	if before != nil {
		l.drain = before.drain
	}
	l.drain.observe(l, now)
	return l
}

// laneSet is all lanes at one time, ordered by number.
type laneSet struct {
	lanes  []*Lane
	looked time.Time // when they were looked up, by the clock on the wall
	// after is how long after a lane began, its predecessors may still know
	// ids that now hash to it.
	after time.Duration
}

func newLaneSet(lanes []*Lane, looked time.Time) *laneSet {
	set := &laneSet{lanes: lanes, looked: looked.Round(0)}
	for _, l := range lanes {
		set.after = max(set.after, l.Window+10*time.Second)
	}
	slices.SortFunc(set.lanes, func(a, b *Lane) int { return a.Number - b.Number })
	return set
}

func (s *laneSet) lane(number int) (*Lane, bool) {
	if s == nil {
		return nil, false
	}
	for _, l := range s.lanes {
		if l.Number == number {
			return l, true
		}
	}
	return nil, false
}

// route is where an id goes.
type route struct {
	lane    *Lane
	earlier []*Lane   // lanes that may know the id from before the newest lanes began; ask them first
	wait    time.Time // before then another api may still send the id elsewhere
}

// route picks the lane of an id among those that take records by rendezvous
// hash, so that a new lane takes over its share of ids and no other id moves.
//
// An id that moves may have been taken by its earlier lane within the duplicate
// window, and JetStream would not know that on the new one. So for that long
// its earlier lanes are asked first; and around the change itself it waits
// until the slowest clock has changed too.
func (s *laneSet) route(id string, now time.Time) route {
	var r route
	var begins []time.Time // of the lanes that began lately
	for _, l := range s.lanes {
		if !l.From.After(now) && now.Sub(l.From) < s.after {
			begins = append(begins, l.From)
		}
	}
	r.lane = s.pick(id, now)
	for _, begin := range begins {
		earlier := s.pick(id, begin.Add(-1))
		if earlier == r.lane {
			continue
		}
		if !slices.Contains(r.earlier, earlier) {
			r.earlier = append(r.earlier, earlier)
		}
		if safe := begin.Add(laneSkew); safe.After(now) {
			r.wait = safe
		}
	}
	return r
}

// until is how long what route says at a time may be acted on: until the look-up
// is old, or the next lane begins. A process may be frozen in between.
func (s *laneSet) until(now time.Time, fresh time.Duration) time.Time {
	until := s.looked.Add(fresh)
	for _, l := range s.lanes {
		if l.From.After(now) && l.From.Before(until) {
			until = l.From
		}
	}
	return until
}

// pick is the lane of an id at a time.
func (s *laneSet) pick(id string, at time.Time) *Lane {
	var best *Lane
	var most uint64
	for _, l := range s.lanes {
		if l.From.After(at) {
			continue
		}
		if h := xxh3.HashStringSeed(id, uint64(l.Number)); best == nil || h > most {
			best, most = l, h
		}
	}
	if best == nil {
		best = s.lanes[0] // lane 0 is missing: the publisher will hear of it
	}
	return best
}
