package stream

import (
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"sluice/pkg/record"
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
func (s *sent) begin(sub *record.Submission) (durable, fresh bool, err error) {
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
		return false, false, record.ErrKeyReused
	}
	return before.durable, false, nil
}

// end remembers that all of a request is durable.
func (s *sent) end(sub *record.Submission) {
	if !sub.Unique {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.put(xxh3.HashString128(sub.ID).Bytes(), request{hash: xxh3.HashString128(sub.Hash).Bytes(), durable: true})
	}
}

// forget is called when a fresh request was certainly not sent: its key is free.
func (s *sent) forget(sub *record.Submission) {
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
