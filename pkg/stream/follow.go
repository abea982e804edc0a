package stream

import (
	"context"
	"encoding/base64"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"sluice/pkg/flow"
)

// sent is what this process remembers of the requests it has sent, to answer
// those who repeat them: that their records are there, or that their key was
// used for something else. It is bounded, and forgets the oldest first: the
// ingester is who drops what is repeated, over all apis.
type sent struct {
	window time.Duration // how long a request is remembered at least, while there is room

	mu        sync.Mutex
	now, past map[[16]byte]request // by the hash of the id
	since     time.Time            // when now was begun
}

// request is one that was sent.
type request struct {
	hash    [16]byte // of what it holds
	durable bool     // all of it
}

// sentAtOnce is how many requests one of the two maps holds: about 16 MiB both.
const sentAtOnce = 1 << 17

// begin remembers a request before it is sent, and tells what is known of it.
// fresh says that nothing is.
func (s *sent) begin(sub *flow.Submission) (durable, fresh bool, err error) {
	if sub.Unique {
		return false, true, nil
	}
	id, hash := xxh3.HashString128(sub.ID).Bytes(), xxh3.HashString128(sub.Hash).Bytes()
	s.mu.Lock()
	defer s.mu.Unlock()
	before, there := s.now[id]
	if !there {
		before, there = s.past[id]
	}
	switch {
	case !there:
		s.put(id, request{hash: hash})
		return false, true, nil
	case before.hash != hash:
		return false, false, flow.ErrKeyReused
	}
	return before.durable, false, nil
}

// end remembers that all of a request is durable.
func (s *sent) end(sub *flow.Submission) {
	if !sub.Unique {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.put(xxh3.HashString128(sub.ID).Bytes(), request{hash: xxh3.HashString128(sub.Hash).Bytes(), durable: true})
	}
}

// forget is called when a fresh request was certainly not sent: its key is free.
func (s *sent) forget(sub *flow.Submission) {
	if !sub.Unique {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.now, xxh3.HashString128(sub.ID).Bytes())
	}
}

func (s *sent) put(id [16]byte, r request) {
	if now := time.Now(); s.now == nil || len(s.now) >= sentAtOnce || passed(now, s.since.Add(s.window)) {
		s.past, s.now, s.since = s.now, make(map[[16]byte]request), now
	}
	s.now[id] = r
}

const (
	// followAtOnce bounds the messages of a lane that are read of one look-up.
	// What is older is passed over: an answer that is right without it is a
	// courtesy, not worth falling behind for.
	followAtOnce = 10_000

	// heardRequests is how many requests are remembered, of 16 bytes each.
	heardRequests = 1 << 18

	// ownAtMost bounds the entries of its own that a follower counts between two
	// look-ups. Beyond it reads some of them, which changes nothing.
	ownAtMost = 1 << 14
)

// follower learns from the lanes which requests other apis have sent, as far as
// they need the memory of requests: the lane's table is in the header of an entry,
// so that no body is read. It reads nothing while all that comes is this api's own,
// so that an api that is alone pays nothing.
//
// What it knows decides about answers alone. A request that another api has sent is
// sent again all the same, and the ingester drops it: here it is not known whether all
// of it is durable, or counts.
type follower struct {
	stream *Stream
	heard  heard

	mu  sync.Mutex
	own map[int][]uint64 // entries of this api by lane, in order, that follow has not looked at

	lanes map[int]*followed // owned by follow
}

// followed is how far a lane was followed.
type followed struct {
	created time.Time // the life of its stream
	next    uint64
}

func newFollower(s *Stream) *follower {
	return &follower{stream: s, heard: newHeard(s.cfg.RepeatWindow), own: map[int][]uint64{}, lanes: map[int]*followed{}}
}

// sent is told of an entry of this api.
func (f *follower) sent(lane int, seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	own := f.own[lane]
	if n := len(own); n == ownAtMost || n > 0 && own[n-1] >= seq {
		return
	}
	f.own[lane] = append(own, seq)
}

// strange takes the entries of this api up to a message out, and returns where
// messages of others begin and end between two; from > to when there are none.
func (f *follower) strange(lane int, from, to uint64) (uint64, uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	own := f.own[lane]
	n, _ := slices.BinarySearch(own, to+1)
	for _, seq := range own[:n] {
		if seq == from {
			from++
		}
	}
	for i := n - 1; i >= 0 && own[i] == to && from <= to; i-- {
		to--
	}
	f.own[lane] = append(own[:0], own[n:]...)
	return from, to
}

func (f *follower) forget(lane int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.own, lane)
}

// follow reads what others have sent up to the last look-up.
func (f *follower) follow(ctx context.Context) error {
	var all []error
	for _, lane := range f.stream.view.Load().lanes {
		at := f.lanes[lane.Number]
		if at == nil || !at.created.Equal(lane.Created) {
			next, err := f.stream.FirstSince(ctx, lane.Number, lane.Now.Add(-f.stream.cfg.RepeatWindow))
			if err != nil {
				all = append(all, err)
				continue
			}
			at = &followed{lane.Created, next}
			f.lanes[lane.Number] = at
			f.forget(lane.Number) // of the life before
		}
		from, to := f.strange(lane.Number, max(at.next, lane.First), lane.Last)
		if to+1 > followAtOnce {
			from = max(from, to+1-followAtOnce)
		}
		if from <= to {
			if err := f.read(ctx, lane, from, to); err != nil {
				all = append(all, err)
				continue
			}
		}
		at.next = max(at.next, lane.Last+1)
	}
	return errors.Join(all...)
}

// read remembers the requests in messages of a lane.
func (f *follower) read(ctx context.Context, lane *Lane, from, to uint64) error {
	var table []byte
	for msg, err := range f.stream.scan(ctx, lane.Stream, scanFrom{subject: RecordTopic(lane.Number), seq: from, heads: true}) {
		if err != nil {
			return err
		}
		if msg.seq > to {
			return nil
		}
		f.stream.m.followed.Inc()
		text := first(msg.Headers(), headerEntry)
		if table, err = base64.RawStdEncoding.AppendDecode(table[:0], []byte(text)); err == nil {
			ago := max(0, lane.Now.Sub(msg.at))
			err = flow.SkimEntry(table, func(id, hash []byte) { f.heard.add(id, hash, lane.Looked.Add(-ago)) })
		}
		if err != nil { // the ingester sets it aside
			f.stream.log.Debug("an entry cannot be followed", "lane", lane.Number, "seq", msg.seq, "error", err)
		}
	}
	return nil
}

// knows says whether another api, or this one before it was started, has sent the
// request. The error is flow.ErrKeyReused when it was one with the same id and
// another body.
func (f *follower) knows(sub *flow.Submission) (bool, error) {
	var names [512]byte
	id := flow.AppendName(names[:0], sub.ID)
	hash := flow.AppendName(id, sub.Hash)[len(id):]
	known, same := f.heard.find(id, hash, time.Now())
	if known && !same {
		return false, flow.ErrKeyReused
	}
	return known, nil
}

// heard are requests that were heard of: 16 bytes for each, in places that the id
// chooses eight of. The oldest of the eight goes when a ninth comes. By its seed
// no client can make two ids that look the same.
type heard struct {
	window time.Duration
	begun  time.Time // a little more than the window before it was made
	seed   uint64

	mu     sync.RWMutex
	places []place // made when the first request comes
}

// place is a request.
type place struct {
	id   uint64
	hash uint32
	at   uint32 // when it was sent, seconds after heard has begun; 0 for an empty place
}

const placesOfID = 8

func newHeard(window time.Duration) heard {
	return heard{window: window, begun: time.Now().Add(-window - time.Minute), seed: rand.Uint64()}
}

func (h *heard) of(id, hash []byte) (uint64, uint32) {
	return xxh3.HashSeed(id, h.seed), uint32(xxh3.HashSeed(hash, h.seed))
}

// row are the places of an id, the newest first.
func (h *heard) row(id uint64) []place {
	i := int(id%uint64(len(h.places)/placesOfID)) * placesOfID
	return h.places[i : i+placesOfID]
}

// add remembers a request that was sent at a time.
func (h *heard) add(idName, hashName []byte, at time.Time) {
	id, hash := h.of(idName, hashName)
	seconds := at.Sub(h.begun) / time.Second
	if seconds < 1 {
		return // long ago
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.places == nil {
		h.places = make([]place, heardRequests)
	}
	row := h.row(id)
	i := slices.IndexFunc(row, func(p place) bool { return p.id == id && p.at > 0 })
	if i < 0 {
		i = placesOfID - 1
	}
	copy(row[1:i+1], row[:i])
	row[0] = place{id, hash, uint32(seconds)}
}

// find says whether a request of this id was sent within the window, and whether
// it was the same.
func (h *heard) find(idName, hashName []byte, now time.Time) (known, same bool) {
	id, hash := h.of(idName, hashName)
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.places == nil {
		return false, false
	}
	since := now.Sub(h.begun) - h.window
	for _, p := range h.row(id) {
		if p.id == id && p.at > 0 && time.Duration(p.at)*time.Second >= since {
			return true, p.hash == hash
		}
	}
	return false, false
}
