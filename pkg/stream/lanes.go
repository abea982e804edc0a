package stream

import (
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Lane is a lane as it was looked up last.
type Lane struct {
	Number   int
	Stream   string        // its JetStream stream
	Created  time.Time     // when the stream was made; tells it from another of the same name
	First    uint64        // sequence of the oldest message it holds, LastSeq+1 when it holds none
	Last     uint64        // sequence of the newest message it ever took
	Messages uint64        // messages it holds
	Bytes    uint64        // bytes it holds
	MaxBytes int64         // bytes it may hold
	Window   time.Duration // how long it knows the ids of the messages it has taken
	Now      time.Time     // when the server said so, by its own clock, which stamps the lane's messages
	Looked   time.Time     // when it was asked, or before, by this machine's
	drain    drain
}

// Identity names the stream behind the lane for ever: name@creation, unix ns.
func (l *Lane) Identity() string {
	return l.Stream + "@" + strconv.FormatInt(l.Created.UnixNano(), 10)
}

func newLane(info *jetstream.StreamInfo, before *Lane, now time.Time) *Lane {
	number, _ := laneNumber(info.Config.Name)
	l := &Lane{
		Number: number, Stream: info.Config.Name, Created: info.Created,
		First: info.State.FirstSeq, Last: info.State.LastSeq,
		Messages: info.State.Msgs, Bytes: info.State.Bytes,
		MaxBytes: info.Config.MaxBytes, Window: info.Config.Duplicates, Now: info.TimeStamp, Looked: now,
	}
	if before != nil {
		l.drain = before.drain
	}
	l.drain.observe(l, now)
	return l
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
