package ingest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/broker"
	"sluice/pkg/stream"
)

// leaseBucket is the bucket of leases as NATS keeps it: an entry that is not renewed expires
// silently, and every change has a revision.
type leaseBucket struct {
	mu       sync.Mutex
	revision uint64
	entries  map[string]leaseEntry
	watchers map[chan jetstream.KeyValueEntry]bool
}

type leaseEntry struct {
	jetstream.KeyValueEntry // unused by leases

	key, value string
	revision   uint64
	deleted    bool
	at         time.Time
}

func (e leaseEntry) Key() string      { return e.key }
func (e leaseEntry) Value() []byte    { return []byte(e.value) }
func (e leaseEntry) Revision() uint64 { return e.revision }
func (e leaseEntry) Operation() jetstream.KeyValueOp {
	if e.deleted {
		return jetstream.KeyValueDelete
	}
	return jetstream.KeyValuePut
}

func (b *leaseBucket) get(key string) (leaseEntry, bool) {
	e, is := b.entries[key]
	return e, is && !e.deleted && time.Since(e.at) < stream.LeaseTTL
}

// put stores an entry and notifies the watchers.
func (b *leaseBucket) put(key, value string, deleted bool) uint64 {
	b.revision++
	e := leaseEntry{key: key, value: value, revision: b.revision, deleted: deleted, at: time.Now()}
	b.entries[key] = e
	for w := range b.watchers {
		w <- e // its buffer has room
	}
	return e.revision
}

var errAway = errors.New("nats: timeout")

type ownBucket struct {
	broker.KeyValue // unused by leases
	*leaseBucket
	name string
	away bool // guarded by leaseBucket.mu
}

func (b *ownBucket) setAway(away bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away = away
}

// do runs one operation, which takes time; while NATS is away it blocks until ctx ends.
func (b *ownBucket) do(ctx context.Context, apply func() error) error {
	select {
	case <-time.After(kvTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	b.mu.Lock()
	if !b.away {
		defer b.mu.Unlock()
		return apply()
	}
	b.mu.Unlock()
	<-ctx.Done()
	return errAway
}

func (b *ownBucket) Create(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	return revision, b.do(ctx, func() error {
		if _, there := b.get(key); there {
			return jetstream.ErrKeyExists
		}
		revision = b.put(key, string(value), false)
		return nil
	})
}

func (b *ownBucket) Update(ctx context.Context, key string, value []byte, last uint64) (revision uint64, err error) {
	return revision, b.do(ctx, func() error {
		if e, there := b.get(key); !there || e.revision != last {
			return &jetstream.APIError{Code: 400, ErrorCode: 10164, Description: "wrong last sequence"}
		}
		revision = b.put(key, string(value), false)
		return nil
	})
}

func (b *ownBucket) Put(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	return revision, b.do(ctx, func() error { revision = b.put(key, string(value), false); return nil })
}

func (b *ownBucket) Get(ctx context.Context, key string) (entry jetstream.KeyValueEntry, err error) {
	return entry, b.do(ctx, func() error {
		e, there := b.get(key)
		if !there {
			return jetstream.ErrKeyNotFound
		}
		entry = e
		return nil
	})
}

// Delete removes an entry of this ingester's last write. Leases pass the revision of that write;
// the fake compares the writer instead.
func (b *ownBucket) Delete(ctx context.Context, key string, _ uint64) error {
	return b.do(ctx, func() error {
		if e, there := b.get(key); there && e.value != b.name {
			return &jetstream.APIError{Code: 400, ErrorCode: 10164, Description: "wrong last sequence"}
		}
		b.put(key, b.name, true)
		return nil
	})
}

func (b *ownBucket) Watch(ctx context.Context, _ string, _ bool) (jetstream.KeyWatcher, error) {
	w := &leaseWatcher{updates: make(chan jetstream.KeyValueEntry)}
	changes := make(chan jetstream.KeyValueEntry, 100_000)
	var present []leaseEntry
	err := b.do(ctx, func() error {
		for key := range b.entries {
			if e, there := b.get(key); there {
				present = append(present, e)
			}
		}
		b.watchers[changes] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(present, func(a, b leaseEntry) int { return int(a.revision) - int(b.revision) })
	go b.notify(ctx, present, changes, w.updates)
	return w, nil
}

// notify sends the present entries, nil, and then the changes. A watcher that is cut off misses
// changes, as after a lost connection.
func (b *ownBucket) notify(ctx context.Context, present []leaseEntry, changes chan jetstream.KeyValueEntry, updates chan<- jetstream.KeyValueEntry) {
	defer close(updates)
	defer func() {
		b.mu.Lock()
		delete(b.watchers, changes)
		b.mu.Unlock()
	}()
	send := func(e jetstream.KeyValueEntry) bool {
		select {
		case updates <- e:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for _, e := range present {
		if !send(e) {
			return
		}
	}
	if !send(nil) {
		return
	}
	for {
		select {
		case e := <-changes:
			b.mu.Lock()
			away := b.away
			b.mu.Unlock()
			if !away && !send(e) {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

type leaseWatcher struct {
	jetstream.KeyWatcher // unused by leases
	updates              chan jetstream.KeyValueEntry
}

func (w *leaseWatcher) Updates() <-chan jetstream.KeyValueEntry { return w.updates }
