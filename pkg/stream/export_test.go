package stream

import (
	"context"
	"time"
	"unsafe"

	"sluice/pkg/flow"
)

// ErrStale says that lanes were looked up too long ago.
var ErrStale = errStale

// SendUntil sends submissions to lane 0 as if they had been routed for no longer
// than until, in one entry if it comes to that, and returns what they are told.
func (p *Publisher) SendUntil(until time.Time, subs ...*flow.Submission) (errs []error) {
	lane, _ := p.stream.view.Load().lane(0)
	var list []*piece
	for _, sub := range subs {
		some, err := pieces(sub)
		if err != nil {
			return []error{err}
		}
		for _, pc := range some {
			pc.lane, pc.until = lane, until
		}
		list = append(list, some...)
	}
	p.gatherer(0).add(list)
	for _, pc := range list {
		errs = append(errs, <-pc.told)
	}
	return errs
}

// ErrAnew says that something was not sent, and must be routed anew.
var ErrAnew = errAnew

// ErrSilent says that a server has kept messages to itself.
var ErrSilent = errSilent

// SeenAll says whether a scan that has seen a message has seen all up to the end.
func (s *Stream) SeenAll(ctx context.Context, stream, subject string, seen, end uint64) error {
	handle, err := s.js.Stream(ctx, stream)
	if err != nil {
		return err
	}
	return seenAll(ctx, handle, scanFrom{subject: subject}, seen, end)
}

// SetSilence sets how long a reader hears of no message before it looks.
func (s *Stream) SetSilence(d time.Duration) { s.silence = d }

// SetSettle sets how long a new leader has to write what it is behind.
func (s *Stream) SetSettle(d time.Duration) { s.settle = d }

// Origin is what names a dead letter in its subjects.
func Origin(d DeadLetter) string { return d.origin }

// KeepFrom is what a Purger keeps.
var KeepFrom = keepFrom

// SetMargin sets what a Purger keeps beyond the duplicate window.
func (p *Purger) SetMargin(d time.Duration) { p.margin = d }

// ErrDisconnected ends an attempt whose connection was lost.
var ErrDisconnected = errDisconnected

// Judge is what is done about a failed attempt, and what the submitter hears.
func Judge(err error) (string, error) {
	v, _, answer := judge(err)
	return [...]string{"give up", "again", "unknown", "cut", "unreached"}[v], answer
}

// FreeAfter is how long a lane's publishers are told to wait for need bytes,
// after observations of a lane whose messages have 100 bytes each: seconds
// since the first, and the first sequence.
func FreeAfter(need int, seen ...[2]int) time.Duration {
	var d freeRate
	begin := time.Unix(1_700_000_000, 0)
	now := begin
	for _, s := range seen {
		now = begin.Add(time.Duration(s[0]) * time.Second)
		d.observe(&Lane{First: uint64(s[1]), Messages: 10, Bytes: 1000}, now)
	}
	return d.after(need, now)
}

// Heard are requests that were heard of.
type Heard struct{ h heard }

func NewHeard(window time.Duration) *Heard { return &Heard{newHeard(window)} }

func (h *Heard) Add(id, hash string, at time.Time) { h.h.add([]byte(id), []byte(hash), at) }
func (h *Heard) Find(id, hash string, now time.Time) (known, same bool) {
	return h.h.find([]byte(id), []byte(hash), now)
}

// Bytes are what Heard takes, and for how many requests.
func (h *Heard) Bytes() (bytes uintptr, requests int) {
	return uintptr(len(h.h.places)) * unsafe.Sizeof(place{}), heardRequests
}

// Follow reads what others have sent up to the last look-up.
func (p *Publisher) Follow(ctx context.Context) error { return p.others.follow(ctx) }

// Fence puts a fence into a lane.
func (s *Stream) Fence(ctx context.Context, lane int, source string) (uint64, error) {
	return s.fence(ctx, lane, source)
}

// Stand is a position as it stands, whatever the lane holds.
func (p *Positions) Stand(ctx context.Context, lane int) (flow.Position, error) {
	return p.entry(ctx, lane)
}
