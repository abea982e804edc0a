package stream

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"sluice/pkg/record"
)

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
// sent again all the same, and the ingester drops it: here nobody knows whether all
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
			err = skim(table, func(id, hash []byte) { f.heard.add(id, hash, lane.Looked.Add(-ago)) })
		}
		if err != nil { // the ingester sets it aside
			f.stream.log.Debug("an entry cannot be followed", "lane", lane.Number, "seq", msg.seq, "error", err)
		}
	}
	return nil
}

// knows says whether another api, or this one before it was started, has sent the
// request. The error is record.ErrKeyReused when it was one with the same id and
// another body.
func (f *follower) knows(sub *record.Submission) (bool, error) {
	var names [512]byte
	id := appendName(names[:0], sub.ID)
	hash := appendName(id, sub.Hash)[len(id):]
	known, same := f.heard.find(id, hash, time.Now())
	if known && !same {
		return false, record.ErrKeyReused
	}
	return known, nil
}

// heard are requests that were heard of: 16 bytes for each, in places that the id
// chooses eight of. The oldest of the eight goes when a ninth comes. By its seed
// nobody outside can make two ids that look the same.
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

// skim calls f with id and hash of every request in the table of an entry that
// needs the memory of requests, as they stand there. It looks no closer than it
// must: parseEntry does.
func skim(table []byte, f func(id, hash []byte)) error {
	r := tableReader{b: table, row: -1}
	if len(table) == 0 || table[0] != entryVersion {
		r.fail("it is not of version %d", entryVersion)
		return r.err
	}
	r.at = 1
	r.skip(2) // what the api knew, and its patience
	for r.row = 0; r.err == nil && r.at < len(table); r.row++ {
		flags := r.number("the flags", 1<<rowFlags-1)
		id := r.raw()
		hash := r.raw()
		if r.number("the caller", 1<<31) == 0 {
			r.raw()
			r.raw()
		}
		r.skip(1) // when it was received
		r.raw()   // the trace context
		r.skip(3) // the first record, how many, and the bytes of the body
		if r.err == nil && flags&rowIdentified == 0 {
			f(id, hash)
		}
	}
	return r.err
}

// raw is a text as it stands in the table, its length included.
func (r *tableReader) raw() []byte {
	begin := r.at
	size := int(r.number("the length of a name", 1<<24) >> 1)
	if r.err == nil && size > len(r.b)-r.at {
		r.fail("a name has %d bytes, and %d are left", size, len(r.b)-r.at)
	}
	if r.err != nil {
		return nil
	}
	r.at += size
	return r.b[begin:r.at]
}

// skip passes over numbers.
func (r *tableReader) skip(n int) {
	for range n {
		_, size := binary.Uvarint(r.b[min(r.at, len(r.b)):])
		if size <= 0 {
			r.fail("a number is missing")
			return
		}
		r.at += size
	}
}
