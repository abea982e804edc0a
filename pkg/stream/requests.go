package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"sluice/pkg/flow"
)

// requestCache remembers recent requests of this process: a repeat waits for the same batches
// and stores nothing new, and a key reused with another body is refused, as long as the lanes
// hold the messages (Publisher.repeat). It is bounded and evicts the oldest: the ingester
// deduplicates across apis anyway.
type requestCache struct {
	clock  func() time.Time
	window time.Duration // shortest time to remember a request, within the bound

	mu        sync.Mutex
	now, past map[[16]byte]*request // by idOf
	since     time.Time             // creation of now
}

// request is an immutable entry of the cache.
type request struct {
	hash    [16]byte // of its content
	earlier bool     // an earlier attempt failed and may have left chunks in the lanes
	batches []*batch // of its chunks; nil once durable
	places  []flow.Place
}

func hashOf(sub *flow.Submission) [16]byte { return xxh3.HashString128(sub.Hash).Bytes() }

// maxRequests bounds each of the two maps, about 24 MiB together.
const maxRequests = 1 << 16

// find returns the request of this id, perhaps with another body, if it is durable or in flight;
// otherwise nil.
func (c *requestCache) find(sub *flow.Submission) *request {
	if sub.Unique {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.get(sub); r != nil && !r.failed() {
		return r
	}
	return nil
}

// take caches a request with the batches that add puts it into, unless another call already did
// (known). The lock is held during add, so that of two equal calls one adds and the other finds
// its batches.
func (c *requestCache) take(sub *flow.Submission, add func() ([]*batch, error)) (taken *request, known bool, err error) {
	if sub.Unique {
		batches, err := add()
		return &request{batches: batches}, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.get(sub)
	if r != nil && !r.failed() {
		return r, true, nil
	}
	taken = &request{hash: hashOf(sub), earlier: r != nil}
	if taken.batches, err = add(); err != nil {
		return nil, false, err
	}
	if now := c.clock(); c.now == nil || len(c.now) >= maxRequests || passed(now, c.since.Add(c.window)) {
		c.past, c.now, c.since = c.now, make(map[[16]byte]*request), now
	}
	c.now[idOf(sub)] = taken
	return taken, false, nil
}

// finish records the outcome of a request. A key under which certainly nothing was sent can be used again.
func (c *requestCache) finish(sub *flow.Submission, r *request, places []flow.Place, some bool, err error) {
	switch {
	case len(r.batches) == 0 || sub.Unique: // already recorded, or never cached
	case err == nil:
		c.replace(sub, r, &request{hash: r.hash, places: places})
	case !some && !r.earlier && !errors.Is(err, flow.ErrUnavailable):
		c.replace(sub, r, nil)
	}
}

// replace replaces a request by next, nil for none, unless another call already did.
func (c *requestCache) replace(sub *flow.Submission, r, next *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := idOf(sub)
	for _, half := range [...]map[[16]byte]*request{c.now, c.past} {
		switch {
		case half[id] != r:
		case next == nil:
			delete(half, id)
		default:
			half[id] = next
		}
	}
}

func (c *requestCache) get(sub *flow.Submission) *request {
	id := idOf(sub)
	if r := c.now[id]; r != nil {
		return r
	}
	return c.past[id]
}

// idOf is the cache key of a request: the hash of source, subject, and id.
func idOf(sub *flow.Submission) [16]byte {
	b := make([]byte, 0, 256)
	for _, part := range [...]string{sub.Source, sub.Subject, sub.ID} {
		b = append(binary.AppendUvarint(b, uint64(len(part))), part...)
	}
	return xxh3.Hash128(b).Bytes()
}

// failed reports whether a batch of the request has failed, so that it must be sent again.
func (r *request) failed() bool {
	for _, b := range r.batches {
		select {
		case <-b.done:
			if b.err != nil {
				return true
			}
		default:
		}
	}
	return false
}

// wait waits for all batches of the request, or until ctx ends. some: at least one is durable.
func (r *request) wait(ctx context.Context) (places []flow.Place, some bool, err error) {
	places = r.places
	for _, b := range r.batches {
		failed := b.wait(ctx)
		if failed == nil {
			some = true
			places = append(places, flow.Place{Lane: b.lane.Number, Stream: b.lane.StreamID(), Seq: b.seq, ID: b.id})
		} else if worse(failed, err) {
			err = failed
		}
	}
	return places, some, err
}

// wait waits for the outcome of a batch. If ctx ends before, the batch may still become durable.
func (b *batch) wait(ctx context.Context) error {
	select {
	case <-b.done:
		return b.err
	default:
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return unavailable(fmt.Errorf("wait for lane %d: %w", b.lane.Number, context.Cause(ctx)), 2*time.Second)
	}
}

// worse reports whether to report err rather than other: a request that can never be stored
// comes first, then an unknown outcome.
func worse(err, other error) bool {
	if err == nil || other == nil {
		return err != nil
	}
	for _, first := range []error{flow.ErrKeyReused, flow.ErrTooLarge, flow.ErrUnavailable} {
		if errors.Is(other, first) {
			return false
		}
		if errors.Is(err, first) {
			return true
		}
	}
	return false
}
